"""Records that cannot be settled are parked, and stop no other."""

import json
from uuid import UUID

import asyncpg
import msgspec
from sqlalchemy import text

from billing.metering.holds import HoldManager
from billing.metering.records import Outcome, PriceVersion, UsageRecord
from billing.metering.settlement import PendingSettlement, Settlement
from core.db import Database
from core.tokens import TokenUsage
from tests.integration.billing.metering.settling import USAGE, all_sound, never, settle
from tests.integration.billing.support import (
    make_customer,
    price,
    usage_rows,
)
from tests.support.waiting import until


async def test_one_bad_record_never_stops_a_batch(
    database: Database, manager: HoldManager, hot: asyncpg.Connection
) -> None:
    await price(database)
    customer = await make_customer(database, "1")
    other_version = await price(database, model="other")
    good, negative, cached, foreign = [await manager.place(customer.hold()) for _ in range(4)]
    records = [
        customer.ended(good, USAGE),
        customer.ended(negative, TokenUsage(input=-1)),
        customer.ended(cached, TokenUsage(input=1, cached_input=2)),
        UsageRecord(
            open=msgspec.structs.replace(
                customer.open(foreign), price=PriceVersion(other_version, 0, 0, 0, 0)
            ),
            outcome=Outcome.COMPLETED,
        ),
    ]
    results = await settle(hot, *records)
    assert results[good.request_id] == "settled"
    assert [results[one.request_id] for one in (negative, cached, foreign)] == ["parked"] * 3
    assert list(await usage_rows(database, customer)) == [good.request_id]
    async with database.system() as connection:
        rows = (await connection.execute(text("SELECT request_id, reason, record FROM settle_errors"))).all()
    reasons = {row.request_id: row.reason for row in rows}
    assert reasons[negative.request_id] == "a count or duration is negative"
    assert reasons[cached.request_id] == "more cached than input tokens"
    assert f"price version {other_version} is not one of model river-7b" in reasons[foreign.request_id]
    assert json.loads(rows[0].record)["tenant_id"] == str(customer.tenant_id)
    await all_sound(database)


async def test_a_record_that_cannot_be_read_back_is_not_called_settled(
    database: Database, manager: HoldManager, pg_url: str
) -> None:
    await price(database)
    customer = await make_customer(database, "1")
    good, gone = [await manager.place(customer.hold()) for _ in range(2)]
    settled: list[UUID] = []
    lost: list[UUID] = []
    settlement = Settlement(pg_url)
    await settlement.start()
    settlement.submit(PendingSettlement(gone.request_id, None, lambda _: None, settled.append, lost.append))
    settlement.submit(
        PendingSettlement(
            good.request_id, customer.ended(good, USAGE), lambda _: None, settled.append, lost.append
        )
    )
    await until(lambda: settled and lost)
    await settlement.close()
    assert (settled, lost) == ([good.request_id], [gone.request_id])


async def test_a_record_that_postgresql_cannot_even_read_is_parked(
    database: Database, manager: HoldManager, pg_url: str
) -> None:
    await price(database)
    customer = await make_customer(database, "1")
    good, bad, huge = [await manager.place(customer.hold()) for _ in range(3)]
    nul = msgspec.structs.replace(customer.ended(bad, USAGE), open=customer.open(bad, replica_id="nul\x00"))
    settled: set[UUID] = set()
    settlement = Settlement(pg_url)
    await settlement.start()
    for record in (customer.ended(good, USAGE), nul, customer.ended(huge, TokenUsage(output=2**70))):
        settlement.submit(
            PendingSettlement(record.open.request_id, record, lambda _: None, settled.add, never)
        )
    await until(lambda: len(settled) == 3)
    await settlement.close()
    assert list(await usage_rows(database, customer)) == [good.request_id]
    async with database.system() as connection:
        parked = set((await connection.execute(text("SELECT request_id FROM settle_errors"))).scalars())
    assert parked == {bad.request_id, huge.request_id}
