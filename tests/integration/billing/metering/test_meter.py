"""The meter end to end: spool, settlement, PostgreSQL away, and the spools of killed processes."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import asyncpg
import msgspec
import pytest
from sqlalchemy import text

from billing.metering.holds import HoldManager
from billing.metering.meter import Meter
from billing.metering.records import Checkpoint, HoldGranted, OpenRecord
from core.clock import SystemClock
from core.db import Database
from core.errors import Unavailable
from core.money import usd_to_pico
from core.tokens import TokenUsage
from tests.integration.billing.metering.settling import all_sound
from tests.integration.billing.support import (
    Customer,
    account,
    make_customer,
    price,
    usage_rows,
)
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[3]
SMALL = 256 * 1024


@pytest.fixture
async def manager(pg_url: str) -> AsyncIterator[HoldManager]:
    manager = HoldManager(pg_url, "api-test", ttl_s=60, clock=SystemClock(), timeout_s=0.5)
    await manager.start()
    await until(lambda: manager.connected)
    yield manager
    await manager.close()


async def hold(manager: HoldManager, customer: Customer) -> HoldGranted:
    """Place a hold; retry while a slow machine makes it time out."""
    while True:
        try:
            return await manager.place(customer.hold())
        except Unavailable:
            await asyncio.sleep(0.05)


@pytest.mark.promise(1)
async def test_a_request_is_metered_from_open_to_ledger(
    database: Database, pg_url: str, manager: HoldManager, tmp_path: Path
) -> None:
    await price(database)
    customer = await make_customer(database, "1")
    settled: list[UUID] = []
    meter = Meter(pg_url, tmp_path, "api-1", spool_bytes=SMALL, on_settled=settled.extend)
    await meter.start()
    assert meter.ready
    granted = await hold(manager, customer)
    meter.open(customer.open(granted))
    meter.checkpoint(Checkpoint(granted.request_id, TokenUsage(input=1, output=1)))
    meter.settle(customer.ended(granted, TokenUsage(input=10, output=10)))
    await until(lambda: settled)
    assert settled == [granted.request_id]
    await meter.close()
    assert os.listdir(tmp_path) == []
    assert (await usage_rows(database, customer))[granted.request_id].cost == 10_000_000 + 100_000_000
    await all_sound(database)


@pytest.mark.promise(10)
async def test_postgresql_away_admits_nothing_and_settles_later_once(
    database: Database, pg_url: str, services: object, manager: HoldManager, tmp_path: Path
) -> None:
    await price(database)
    customer = await make_customer(database, "1")
    meter = Meter(pg_url, tmp_path, "api-1", spool_bytes=SMALL)
    await meter.start()
    running = [await hold(manager, customer) for _ in range(5)]
    for granted in running:
        meter.open(customer.open(granted))
    name = pg_url.rsplit("/", 1)[1]
    owner = await asyncpg.connect(services.postgres_url)  # type: ignore[attr-defined]
    await database.close()
    # Away: no new connections, and the ones there are cut.
    await owner.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    await owner.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name)
    try:
        with pytest.raises(Unavailable):
            await manager.place(customer.hold())
        assert await manager.extend(running[0].request_id, 1024), "what runs may finish"
        for granted in running:
            meter.settle(customer.ended(granted, TokenUsage(output=10)))
        assert meter.ready
        await asyncio.sleep(0.3)
        assert meter.backlog == 5
    finally:
        await owner.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        await owner.close()
    await until(lambda: meter.backlog == 0)
    await meter.close()
    assert len(await usage_rows(database, customer)) == 5
    row = await account(database, customer)
    assert (row.balance, row.held) == (usd_to_pico("1") - 5 * 100_000_000, 0)
    await all_sound(database)


_CRASHING = """
import asyncio, sys, msgspec
from pathlib import Path
from billing.metering.meter import Meter
from billing.metering.records import Checkpoint, OpenRecord, UsageRecord, Outcome
from core.tokens import TokenUsage

async def main() -> None:
    meter = Meter("postgresql://nobody@127.0.0.1:1/none", Path(sys.argv[1]), "api-doomed", spool_bytes=262144)
    await meter.start()
    opened = msgspec.json.decode(sys.stdin.buffer.readline(), type=list[OpenRecord])
    for record in opened:
        meter.open(record)
    for count in (1, 2, 3):
        for record in opened[1:3]:
            output = 0 if record.whole else count
            meter.checkpoint(Checkpoint(record.request_id, TokenUsage(input=10, output=output)))
    meter.settle(UsageRecord(open=opened[0], outcome=Outcome.COMPLETED, usage=TokenUsage(input=10, output=50)))
    print("ready", flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


def crash(spool_dir: Path, opened: list[OpenRecord]) -> None:
    """A process that meters `opened` and is killed: the first ended, two have checkpoints, the rest nothing."""
    process = subprocess.Popen(
        [sys.executable, "-c", _CRASHING, str(spool_dir)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(msgspec.json.encode(opened) + b"\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdin.close()
    process.stdout.close()


@pytest.mark.promise(1, 5, 7)
async def test_the_spool_of_a_killed_process_is_adopted(
    database: Database, pg_url: str, manager: HoldManager, tmp_path: Path
) -> None:
    await price(database)
    customer = await make_customer(database, "1")
    holds = [await hold(manager, customer) for _ in range(4)]
    opened = [customer.open(granted) for granted in holds]
    living = Meter(pg_url, tmp_path, "api-living", spool_bytes=SMALL, adopt_every_s=0.1)
    await living.start()
    await asyncio.to_thread(crash, tmp_path, opened)
    await until(lambda: _rows(database, customer, 4))
    rows = await usage_rows(database, customer)
    found = [(rows[one.request_id].outcome, rows[one.request_id].output_tokens) for one in holds]
    assert found == [("completed", 50), ("interrupted", 3), ("interrupted", 3), ("interrupted", 0)]
    assert rows[holds[3].request_id].cost == 0
    assert rows[holds[1].request_id].cost == 10 * 1_000_000 + 3 * 10_000_000
    await until(lambda: [path.name for path in tmp_path.glob("*.spool")] == ["api-living.spool"])
    assert (await account(database, customer)).held == 0
    await living.close()
    await all_sound(database)


@pytest.mark.promise(7, 8)
async def test_of_a_killed_answer_in_one_piece_its_prompt_is_billed(
    database: Database, pg_url: str, manager: HoldManager, tmp_path: Path
) -> None:
    """At most: without a checkpoint it is not known that the prompt was prefilled."""
    await price(database)
    customer = await make_customer(database, "1")
    holds = [await hold(manager, customer) for _ in range(4)]
    opened = [customer.open(granted, whole=True, max_output_tokens=100) for granted in holds]
    living = Meter(pg_url, tmp_path, "api-living", spool_bytes=SMALL, adopt_every_s=0.1)
    await living.start()
    await asyncio.to_thread(crash, tmp_path, opened)
    await until(lambda: _rows(database, customer, 4))
    rows = await usage_rows(database, customer)
    found = [(rows[one.request_id].outcome, rows[one.request_id].cost) for one in holds[1:]]
    assert found == [("interrupted", 10 * 1_000_000), ("interrupted", 10 * 1_000_000), ("interrupted", 0)]
    await living.close()
    await all_sound(database)


@pytest.mark.promise(1, 7)
async def test_records_settled_before_the_death_are_not_billed_again(
    database: Database, pg_url: str, manager: HoldManager, tmp_path: Path
) -> None:
    await price(database)
    customer = await make_customer(database, "1")
    holds = [await hold(manager, customer) for _ in range(3)]
    first = Meter(pg_url, tmp_path / "a", "api-first", spool_bytes=SMALL)
    await first.start()
    first.settle(customer.ended(holds[0], TokenUsage(input=10, output=50)))
    await first.close()
    await asyncio.to_thread(crash, tmp_path / "b", [customer.open(granted) for granted in holds])
    second = Meter(pg_url, tmp_path / "b", "api-second", spool_bytes=SMALL, adopt_every_s=0.1)
    await second.start()
    await until(lambda: _rows(database, customer, 3))
    await second.close()
    spent = sum(row.cost for row in (await usage_rows(database, customer)).values())
    assert (await account(database, customer)).balance == usd_to_pico("1") - spent
    await all_sound(database)


async def _rows(database: Database, customer: Customer, count: int) -> bool:
    async with database.system() as connection:
        found = await connection.execute(
            text("SELECT count(*) FROM usage WHERE tenant_id = :id"), {"id": customer.tenant_id}
        )
        return bool(found.scalar_one() == count)
