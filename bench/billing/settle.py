"""Measures settlement under load: two processes with the product's own queue, with sealing and real commits.

`python -m bench.billing.settle URL NUMBER ROWS RATE` is one such process: it places holds for ROWS requests,
waits for a line on its input, passes the ended requests to `billing.metering.settlement.Settlement` (RATE a
second; 0 = all at once), and prints its measurements.
"""

import asyncio
import json
import random
import sys
import time
from asyncio.subprocess import PIPE, Process
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg

from bench.billing.months import MODELS, TENANTS, tenant
from billing.metering.records import OpenRecord, Outcome, PriceVersion, UsageRecord
from billing.metering.settlement import PendingSettlement, Settlement
from core.db import Database
from core.ids import uuid7
from core.settings import Settings
from core.tokens import TokenUsage
from jobs.work import seal

SETTLERS = 2
"""Number of settling processes."""
HELD = 10**11
"""Picodollars held for each request, which is more than any request costs."""
PRICE = PriceVersion(1, 270_000, 27_000, 1_100_000, 1_100_000)


def record(rng: random.Random) -> UsageRecord:
    """Return the usage record of a request that has just ended."""
    who = tenant(rng.randrange(TENANTS))
    tokens = rng.randrange(50, 8000)
    opened = OpenRecord(
        request_id=uuid7(), tenant_id=who, project_id=who, key_id=who, model=MODELS[0], tier="standard", region="fra",
        price=PRICE, list_price=PRICE, admitted_at=datetime.now(UTC), replica_id=f"host-{rng.randrange(8)}/r0",
        boot_id="b1", simulated=False, stream=True,
    )  # fmt: skip
    usage = TokenUsage(input=tokens, cached_input=tokens // 3, output=rng.randrange(1, 2000))
    return UsageRecord(
        opened, Outcome.COMPLETED, usage, queue_us=rng.randrange(50_000), ttft_us=rng.randrange(900_000),
        duration_us=rng.randrange(1_000_000),
    )  # fmt: skip


async def place_holds(url: str, records: list[UsageRecord]) -> None:
    """Insert an open hold for each record, as `penstock_hold` does."""
    connection = await asyncpg.connect(url)
    now = datetime.now(UTC)
    await connection.copy_records_to_table(
        "holds",
        columns=(
            "request_id", "tenant_id", "project_id", "key_id", "model", "incarnation", "price_version",
            "output_tokens", "amount", "admitted_at", "renewed_at",
        ),
        records=[
            (one.open.request_id, one.open.tenant_id, one.open.tenant_id, one.open.tenant_id, one.open.model, "bench",
             1, 2000, HELD, now, now)
            for one in records
        ],
    )  # fmt: skip
    await connection.close()


async def settler(url: str, number: int, rows: int, rate: float) -> None:
    """Run one settling process."""
    rng = random.Random(number)
    records = [record(rng) for _ in range(rows)]
    await place_holds(url, records)
    settlement = Settlement(url)
    await settlement.start()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    submitted: dict[UUID, float] = {}
    lags: list[float] = []
    over = asyncio.Event()

    def done(request_id: UUID) -> None:
        lags.append(time.perf_counter() - submitted[request_id])
        if len(lags) == rows:
            over.set()

    began = time.perf_counter()
    backlog = 0
    for place, one in enumerate(records):
        if rate and (due := began + place / rate) > time.perf_counter() + 0.002:
            await asyncio.sleep(due - time.perf_counter())
        submitted[one.open.request_id] = time.perf_counter()
        settlement.submit(PendingSettlement(one.open.request_id, one, lambda _: None, done, done))
        if place % 256 == 0:
            backlog = max(backlog, settlement.backlog)
            await asyncio.sleep(0)
    offered_s = time.perf_counter() - began
    left = settlement.backlog
    await over.wait()
    took = time.perf_counter() - began
    await settlement.close()
    lags.sort()
    print(
        json.dumps(
            {
                "rows": rows, "seconds": took, "offered_s": offered_s, "left_at_end": left, "most_waiting": backlog,
                "lag_p50_ms": 1e3 * lags[rows // 2], "lag_p99_ms": 1e3 * lags[int(rows * 0.99)],
            }
        )
    )  # fmt: skip


async def run(url: str, rows: int, rate: float) -> dict[str, Any]:
    """Settle `rows` requests at `rate` a second over all processes (0 = all at once), sealing every two seconds."""
    children = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.billing.settle", url, str(n), str(rows // SETTLERS), str(rate / SETTLERS),
            stdin=PIPE, stdout=PIPE, limit=1 << 24,
        )
        for n in range(SETTLERS)
    ]  # fmt: skip
    for child in children:
        assert (await _line(child)).strip() == "ready"
    connection = await asyncpg.connect(url)
    await connection.execute(
        "UPDATE billing_accounts b SET held = h.amount, open_holds = h.n FROM ("
        "SELECT tenant_id, sum(amount) AS amount, count(*) AS n FROM holds WHERE state = 'open' GROUP BY 1) h "
        "WHERE h.tenant_id = b.tenant_id"
    )
    await connection.execute("VACUUM (ANALYZE) holds")
    database = Database(url)
    began = time.perf_counter()
    for child in children:
        assert child.stdin is not None
        child.stdin.write(b"\n")
    sealing = asyncio.create_task(_seal(database))
    found = [json.loads(await _line(child)) for child in children]
    settled_s = time.perf_counter() - began
    sealing.cancel()
    await asyncio.gather(sealing, return_exceptions=True)
    await seal(database, Settings())
    sealed_s = time.perf_counter() - began
    for child in children:
        await child.wait()
    waiting = await connection.fetchval("SELECT count(*) FROM ledger_unsealed")
    await connection.close()
    await database.close()
    assert waiting == 0
    total = sum(one["rows"] for one in found)
    return {
        "rows": total,
        "offered_per_s": rate,
        "settled_per_s": total / max(one["seconds"] for one in found),
        "settled_and_sealed_per_s": total / sealed_s,
        "seconds": settled_s,
        "left_when_the_offer_ended": sum(one["left_at_end"] for one in found),
        "lag_p50_ms": max(one["lag_p50_ms"] for one in found),
        "lag_p99_ms": max(one["lag_p99_ms"] for one in found),
    }


async def _line(child: Process) -> str:
    assert child.stdout is not None
    return (await child.stdout.readline()).decode()


async def _seal(database: Database) -> None:
    while True:
        await asyncio.sleep(2.0)
        await seal(database, Settings())


if __name__ == "__main__":
    asyncio.run(settler(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
