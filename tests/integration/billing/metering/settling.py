"""Usage as tests of the money path settle it."""

from uuid import UUID

import asyncpg

from billing.ledger.verification import VerificationResult, verify
from billing.metering.records import UsageRecord
from billing.metering.settle_calls import settle_row
from core.db import Database
from core.tokens import TokenUsage


async def settle(
    hot: "asyncpg.Connection[asyncpg.Record]", *records: UsageRecord, **changes: object
) -> dict[UUID, str]:
    rows = [settle_row(record)._replace(**changes) for record in records]
    found = await hot.fetch("SELECT * FROM penstock_settle($1)", rows)
    return {row["request_id"]: row["result"] for row in found}


async def all_sound(database: Database) -> VerificationResult:
    async with database.system() as connection:
        books = await verify(connection)
    assert books.problems == []
    return books


USAGE = TokenUsage(input=10, cached_input=4, output=50, reasoning=20)
COST = 6 * 1_000_000 + 4 * 100_000 + 30 * 10_000_000 + 20 * 20_000_000


def never(request_id: UUID) -> None:
    raise AssertionError(f"{request_id} was not lost")
