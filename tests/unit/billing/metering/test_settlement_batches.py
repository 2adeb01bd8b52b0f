"""Rows per batch: few without a backlog, many with one."""

import pytest

from billing.metering.records import OpenRecord, Outcome, PriceVersion, UsageRecord
from billing.metering.settlement import BACKLOG_ROWS, BATCH_ROWS, PendingSettlement, Settlement
from core.ids import uuid7
from tests.integration.billing.support import utc

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

    async def settle(records: list[UsageRecord]) -> None:
        sizes.append(len(records))

    monkeypatch.setattr(settlement, "_send", settle)
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
