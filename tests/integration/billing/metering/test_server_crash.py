"""PostgreSQL is killed while holds are placed: what its commits that do not wait for the disk may cost."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import psutil
import pytest
from sqlalchemy import text

from billing.metering.holds import HoldManager
from billing.metering.records import HoldGranted
from billing.metering.settlement import PendingSettlement, Settlement
from core.clock import SystemClock
from core.db import Database
from core.embedded import EmbeddedPostgres
from core.errors import Unavailable
from core.services import migrate
from core.tokens import TokenUsage
from tests.integration.billing.support import Customer, account, make_customer, price, usage_rows
from tests.support.processes import signal_all
from tests.support.waiting import until

LOST_S = 1.0
"""Seconds of admissions that a crash of the server may forget: docs/ledger.md."""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedPostgres]:
    made = EmbeddedPostgres(tmp_path, settings={"fsync": "off"})  # processes die, the machine's memory stays
    await made.start()
    await migrate(made.url)
    yield made
    await made.stop()


def kill(server: EmbeddedPostgres) -> None:
    """SIGKILL the postmaster and its processes."""
    tree = psutil.Process(server.pid)
    signal_all([tree.pid, *(each.pid for each in tree.children(recursive=True))], signal.SIGKILL)


async def admit(manager: HoldManager, customer: Customer) -> list[tuple[HoldGranted, float]]:
    """Place holds until PostgreSQL is gone; returns each with the instant at which it was granted."""
    granted: list[tuple[HoldGranted, float]] = []
    while True:
        try:
            hold = await manager.place(customer.hold())
        except Unavailable:
            return granted
        granted.append((hold, time.monotonic()))


@pytest.mark.promise(1, 3)
async def test_a_killed_server_forgets_at_most_a_second_of_holds_and_no_usage(
    server: EmbeddedPostgres,
) -> None:
    database = Database(server.url)
    await price(database)
    customer = await make_customer(database, "1000")
    manager = HoldManager(server.url, "api-1", ttl_s=60, clock=SystemClock(), timeout_s=10.0)
    settlement = Settlement(server.url, window_s=0.0)
    done: set[UUID] = set()
    try:
        await manager.start()
        await until(lambda: manager.connected)
        admitting = asyncio.create_task(admit(manager, customer))
        await asyncio.sleep(2 * LOST_S)  # the fault needs holds that are older than what it may lose
        killed_at = time.monotonic()
        kill(server)
        granted = await admitting
        await server.stop()
        await server.start()
        async with database.system() as connection:
            kept = set((await connection.execute(text("SELECT request_id FROM holds"))).scalars())
        lost = [at for hold, at in granted if hold.request_id not in kept]
        assert all(killed_at - at <= LOST_S for at in lost)
        assert len(granted) > len(lost)
        row = await account(database, customer)
        assert row.open_holds == len(kept), "a hold and its account are one transaction"

        await settlement.start()
        for hold, _ in granted:
            record = customer.ended(hold, TokenUsage(input=10, output=50))
            settlement.submit(
                PendingSettlement(hold.request_id, record, lambda _, kept=record: kept, done.add, done.add)
            )
        await until(lambda: len(done) == len(granted), 60.0)
        rows = await usage_rows(database, customer)
        assert rows.keys() == {hold.request_id for hold, _ in granted}
        row = await account(database, customer)
        unclaimed = len(kept.difference(hold.request_id for hold, _ in granted))
        assert row.open_holds <= unclaimed, "only a hold whose answer was lost waits for its release"
        assert row.spent_month == sum(one.cost for one in rows.values())
    finally:
        await settlement.close()
        await manager.close()
        await database.close()
