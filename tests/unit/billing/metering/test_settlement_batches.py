"""Rows per batch: few without a backlog, many with one."""

import asyncio
from uuid import UUID

import pytest
from prometheus_client import REGISTRY

from billing.metering.records import OpenRecord, Outcome, PriceVersion, UsageRecord
from billing.metering.settle_calls import SettleConnection
from billing.metering.settlement import BACKLOG_ROWS, BATCH_ROWS, PendingSettlement, Settlement
from core import supervise
from core.ids import uuid7
from tests.integration.billing.support import utc
from tests.support.waiting import until

NONE = PriceVersion(1, 0, 0, 0, 0)


def item(done: list[object]) -> PendingSettlement:
    identity = uuid7()
    opened = OpenRecord(
        request_id=identity, tenant_id=identity, project_id=identity, key_id=identity, model="m", tier="t", region="r",
        price=NONE, list_price=NONE, admitted_at=utc(2026, 1, 1), replica_id="h", boot_id="b", simulated=True,
        stream=False,
    )  # fmt: skip
    return PendingSettlement(
        identity, UsageRecord(opened, Outcome.COMPLETED), lambda _: None, done.append, done.append
    )


async def batches_of(rows: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    settlement = Settlement("postgresql://nobody@localhost/none", window_s=0.0)
    sizes: list[int] = []

    async def settle(_: SettleConnection, records: list[UsageRecord]) -> set[UUID]:
        sizes.append(len(records))
        return set()

    monkeypatch.setattr(SettleConnection, "settle", settle)
    done: list[object] = []
    for _ in range(rows):
        settlement.submit(item(done))
    await settlement.start()
    assert await settlement.drain(10)
    await settlement.close()
    assert len(done) == rows == sum(sizes)
    return sizes


async def test_live_batches_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await batches_of(BATCH_ROWS * 3 + 7, monkeypatch) == [BATCH_ROWS] * 3 + [7]


async def test_a_backlog_goes_in_large_batches_and_ends_in_small_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = await batches_of(BACKLOG_ROWS * 2 + BATCH_ROWS, monkeypatch)
    assert sizes[:2] == [BACKLOG_ROWS, BACKLOG_ROWS]
    assert set(sizes[2:]) == {BATCH_ROWS}


async def test_requests_of_a_locked_account_are_settled_apart_and_none_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While a batch is on its way the account becomes free, so that what was put apart before is settled."""
    settlement = Settlement("postgresql://nobody@localhost/none", batch_rows=2, window_s=0.0)
    calls: list[set[UUID]] = []
    done: list[object] = []
    stuck, other = item(done), item(done)
    again = PendingSettlement(uuid7(), stuck.record, lambda _: None, done.append, done.append)
    release = asyncio.Event()

    async def settle(connection: SettleConnection, records: list[UsageRecord]) -> set[UUID]:
        tenants = {record.open.tenant_id for record in records}
        calls.append(tenants)
        if len(calls) == 1:
            settlement.submit(again)
            settlement.submit(item(done))
            return {stuck.request_id}
        if stuck.request_id in tenants:
            await release.wait()
        elif tenants:
            release.set()
            await until(lambda: stuck.request_id in done)
        return set()

    monkeypatch.setattr(SettleConnection, "settle", settle)
    settlement.submit(stuck)
    settlement.submit(other)
    await settlement.start()
    assert await settlement.drain(10)
    await settlement.close()
    assert len(done) == 4
    assert sum(stuck.request_id in tenants for tenants in calls) == 3, "the second one was sent, too"


async def test_an_error_over_one_locked_account_keeps_no_other_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor does it keep the backlog out of the metrics."""
    monkeypatch.setattr(supervise, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(supervise, "LONGEST_PAUSE_S", 0.01)
    settlement = Settlement("postgresql://nobody@localhost/none", window_s=0.0)
    done: list[object] = []
    broken, other = item(done), item(done)
    locked = {broken.request_id, other.request_id}

    async def settle(_: SettleConnection, records: list[UsageRecord]) -> set[UUID]:
        await asyncio.sleep(0)
        tenants = {record.open.tenant_id for record in records}
        if len(tenants) > 1:
            return locked
        if broken.request_id in tenants:
            raise KeyError("a bug")
        return set()

    monkeypatch.setattr(SettleConnection, "settle", settle)
    settlement.submit(broken)
    settlement.submit(other)
    await settlement.start()
    assert REGISTRY.get_sample_value("penstock_settlement_backlog") == 2
    await until(lambda: done == [other.request_id])
    assert REGISTRY.get_sample_value("penstock_settlement_backlog") == 1
    await settlement.close()
