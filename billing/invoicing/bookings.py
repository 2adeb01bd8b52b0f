"""Ledger bookings of invoices and credit notes, written in batches in the caller's transaction."""

import json
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from core.money import PICO_PER_CENT


class Booking(msgspec.Struct, frozen=True):
    """One ledger transfer, the arguments of `penstock_book`; `effective_at` None = now."""

    kind: str
    tenant_id: UUID
    debit: str
    """Code of the account to debit."""
    credit: str
    """Code of the account to credit."""
    amount: int
    """Picodollars, above 0."""
    source_id: UUID
    effective_at: datetime | None = None


def rounding_bookings(
    kind: str, tenant_id: UUID, source_id: UUID, *, exact: int, cents: int
) -> list[Booking]:
    """The booking of `cents` less `exact` (picodollars) between `invoiced` and `rounding`; none when they are equal.

    `kind` is the transfer's kind, `source_id` its source.
    """
    difference = cents * PICO_PER_CENT - exact
    if difference == 0:
        return []
    debit, credit = ("invoiced", "rounding") if difference > 0 else ("rounding", "invoiced")
    return [Booking(kind, tenant_id, debit, credit, abs(difference), source_id)]


async def book_all(connection: AsyncConnection, bookings: Sequence[Booking]) -> None:
    """Book many transfers in one round trip, in the order of tenants' ids; each is idempotent by (source, kind)."""
    if not bookings:
        return
    rows = [
        {**msgspec.to_builtins(one), "amount": str(one.amount), "position": i}
        for i, one in enumerate(bookings)
    ]
    await connection.execute(
        text(
            "SELECT count(penstock_book(kind, tenant_id, debit, credit, amount, source_id, effective_at)) FROM ("
            "SELECT * FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS b (kind text, tenant_id uuid, debit text, "
            "credit text, amount numeric, source_id uuid, effective_at timestamptz, position integer) "
            "ORDER BY tenant_id, position) ordered"
        ),
        {"rows": json.dumps(rows)},
    )
