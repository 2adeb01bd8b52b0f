"""Corrections as tests of invoices request, decide and reverse them."""

from datetime import date
from typing import Any
from uuid import NAMESPACE_DNS, uuid5

from billing.invoicing.correction_booking import apply_correction
from billing.invoicing.correction_views import Correction, get_correction
from billing.invoicing.corrections import (
    decide_correction,
    request_correction,
    request_reversal,
)
from billing.invoicing.rerate import parse_spec
from billing.ledger.approvals import Person
from billing.usage.rollups import roll_up
from tests.integration.billing.invoicing.support import Platform
from tests.integration.billing.support import MODEL

HALF = {"rates": [{"model": MODEL, "input": "0.5", "cached_input": "0.05", "output": "5", "reasoning": "10"}]}
DOUBLE = {"rates": [{"model": MODEL, "input": "2", "cached_input": "0.2", "output": "20", "reasoning": "40"}]}


def someone(name: str) -> Person:
    return Person(str(uuid5(NAMESPACE_DNS, name)), name)


async def request(platform: Platform, month: date, spec: dict[str, Any], by: str = "ann") -> Correction:
    await roll_up(platform.database)
    async with platform.database.system() as connection:
        return await request_correction(
            connection, month, parse_spec(spec), reason="a wrong price", by=someone(by)
        )


async def decide(platform: Platform, one: Correction, *, by: str = "bob", approve: bool = True) -> Correction:
    async with platform.database.system() as connection:
        decided = await decide_correction(connection, one.id, by=someone(by), approve=approve)
    assert decided.status == ("applying" if approve else "rejected")
    await apply_correction(platform.database, one.id)
    async with platform.database.read() as connection:
        return await get_correction(connection, one.id)


async def reverse(platform: Platform, one: Correction, by: str = "ann") -> Correction:
    async with platform.database.system() as connection:
        return await request_reversal(connection, one.id, reason="it was right after all", by=someone(by))
