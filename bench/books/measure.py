"""The measurements: each times one piece of work with the product's own functions, and what it replaces where that is
short enough.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import date, datetime
from typing import Any, cast

import asyncpg
import msgspec
from sqlalchemy import text

from bench.books.data import tenant
from bench.books.stripe_stub import StripeStub
from billing.close import checks
from billing.invoicing import corrections
from billing.invoicing.rerate import parse_spec
from billing.invoicing.run import make_invoices
from billing.invoicing.sources import usage_groups
from billing.ledger import checkpoints, verification
from billing.ledger.months import bounds
from billing.ledger.transfers import SEAL_BATCH, seal
from billing.payments import meter_events, stripe_reconciliation
from billing.usage import rollups
from core.db import Database
from jobs.retention import HOLDS_KEPT

POLL_S = 0.002
"""Seconds between two looks at the locks of a table."""


class Timing(msgspec.Struct, frozen=True):
    """One measurement."""

    name: str
    seconds: float
    detail: str = ""


async def timed(name: str, work: Callable[[], Awaitable[Any]], detail: Callable[[Any], str] = str) -> Timing:
    """Run `work` and return its time, with what `detail` says of its result."""
    began = time.perf_counter()
    found = await work()
    return Timing(name, time.perf_counter() - began, detail(found))


async def seal_all(database: Database) -> int:
    """Seal what waits; returns the number of transfers."""
    total = 0
    while True:
        async with database.system() as connection:
            sealed = await seal(connection)
        total += sealed
        if sealed < SEAL_BATCH // 2:
            return total


async def ledger(database: Database, *, whole: bool) -> list[Timing]:
    """The chain, its checkpoint, the comparison of days; the verification of the whole ledger if `whole`."""
    found = [
        await timed("seal every transfer", lambda: seal_all(database), lambda n: f"{n:,} transfers"),
        await timed(
            "first checkpoint over all of it",
            lambda: checkpoints.advance(database),
            lambda n: f"{n:,} transfers",
        ),
        await timed(
            "one slice verified again",
            lambda: checkpoints.verify_slice(database),
            lambda n: f"{n:,} transfers",
        ),
        await timed(
            "days compared with their rows", lambda: rollups.verify_days(database), lambda n: f"{n} days"
        ),
    ]

    async def recent() -> str:
        async with database.read() as connection:
            books = await checkpoints.verify_recent(connection)
        assert books.problems == [], books.problems[:3]
        return f"{books.fresh:,} transfers after the checkpoint"

    found.append(await timed("ledger verified from its checkpoint", recent))
    if whole:

        async def everything() -> str:
            async with database.system() as connection:
                books = await verification.verify(connection)
            assert books.problems == [], books.problems[:3]
            return f"{books.transfers:,} transfers"

        found.append(await timed("ledger verified from its first link", everything))
    return found


async def checklist(database: Database, month: date) -> list[Timing]:
    """Every check of the close, each in a transaction of its own."""
    found = []
    for check in (*checks.CHECKS, *checks.FINAL_CHECKS):

        async def run(check: Any = check) -> str:
            async with database.read() as connection:
                result = await check(connection, month)
            return "passes" if result.ok else f"fails: {result.detail[:60]}"

        found.append(await timed(f"check {check.__name__}", run))
    return found


async def stripe(database: Database, month: date) -> list[Timing]:
    """The meter job, the invoices, and the comparison with Stripe: first, and when nothing has changed."""
    found = [
        await timed(
            "invoice run", lambda: make_invoices(database, month), lambda run: f"{run.made:,} invoices"
        ),
        await timed(
            "meter job: one run",
            lambda: meter_events.record_changes(database),
            lambda n: f"{n:,} changed hours",
        ),
    ]
    async with database.engine.begin() as owner:
        await owner.execute(text("SET LOCAL session_replication_role = replica"))
        await owner.execute(
            text("UPDATE invoices SET status = 'open', stripe_invoice_id = 'in_' || id WHERE total_cents > 0")
        )
        # Stripe no longer takes hours of that age; the stub has their tokens.
        await owner.execute(text("DELETE FROM stripe_meter_events"))
    stub = await stripe_stub(database, month)
    for name in ("comparison with Stripe: first", "comparison with Stripe: nothing changed"):
        before = stub.calls

        async def compare(name: str = name) -> str:
            result = await stripe_reconciliation.compare_month(
                database, cast(Any, stub), month, only_changed=True
            )
            return f"{result.invoices:,} invoices, {len(result.problems)} problems"

        one = await timed(name, compare)
        found.append(Timing(one.name, one.seconds, f"{one.detail}, {stub.calls - before:,} calls"))
    return found


async def stripe_stub(database: Database, month: date) -> StripeStub:
    """A Stripe that holds what our books hold."""
    start, end = bounds(month)
    lines: dict[str, dict[str, int]] = {}
    async with database.system() as connection:
        invoices = {
            row.stripe_invoice_id: {"id": str(row.id), "status": row.status, "total_cents": row.total_cents}
            for row in await connection.execute(
                text("SELECT id, status, total_cents, stripe_invoice_id FROM invoices WHERE month = :month"),
                {"month": month},
            )
            if row.stripe_invoice_id is not None
        }
        for row in await connection.execute(
            text(
                "SELECT l.invoice_id, l.id, l.cents FROM invoice_lines l JOIN invoices i ON i.id = l.invoice_id "
                "WHERE i.month = :month"
            ),
            {"month": month},
        ):
            lines.setdefault(str(row.invoice_id), {})[str(row.id)] = row.cents
        tokens = {
            f"cus_{row.tenant_id}": int(row.tokens)
            for row in await connection.execute(
                text(
                    "SELECT tenant_id, sum(input_tokens + output_tokens) AS tokens FROM usage_hours "
                    "WHERE hour >= :start AND hour < :end GROUP BY tenant_id"
                ),
                {"start": start, "end": end},
            )
        }
    return StripeStub(invoices, lines, tokens)


async def rerating(database: Database, month: date) -> list[Timing]:
    """The dry run of a correction for one organisation, and the usage of all that it read before."""
    spec = parse_spec(
        {"rates": [{"model": "river-7b", "input": "0.1", "output": "1", "tenant_id": str(tenant(1))},
                   {"model": "lake-70b", "input": "0.1", "output": "1", "tenant_id": str(tenant(1))}]}
    )  # fmt: skip

    async def one() -> str:
        async with database.read() as connection:
            told = await corrections.dry_run(connection, month, spec)
        return f"{len(told.lines)} lines change"

    async def everyone() -> str:
        async with database.read() as connection:
            return f"{len(await usage_groups(connection, month, bounds(month)[1])):,} groups of usage"

    return [
        await timed("re-rating of one organisation", one),
        await timed("reading the usage of all, as before", everyone),
    ]


@asynccontextmanager
async def lock_watch(url: str, table: str) -> Any:
    """Measure for how long ACCESS EXCLUSIVE is held on `table`: a list with the seconds, to within POLL_S."""
    connection = await asyncpg.connect(url)
    held = [0.0]
    over = asyncio.Event()

    async def watch() -> None:
        since: float | None = None
        while not over.is_set():
            locked = await connection.fetchval(
                "SELECT count(*) FROM pg_locks WHERE relation = $1::regclass AND mode = 'AccessExclusiveLock' "
                "AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
                table,
            )
            now = time.perf_counter()
            if locked and since is None:
                since = now
            elif not locked and since is not None:
                held[0], since = held[0] + now - since, None
            await asyncio.sleep(POLL_S)

    watching = asyncio.create_task(watch())
    try:
        yield held
    finally:
        await asyncio.sleep(10 * POLL_S)
        over.set()
        await watching
        await connection.close()


async def partitions(url: str, database: Database, month: date) -> list[Timing]:
    """Drop the month's usage and a month of holds; how long each kept its table locked."""
    start, end = bounds(month)
    owner = await asyncpg.connect(url, server_settings={"timezone": "UTC"}, command_timeout=3600)
    name = f"usage_rows_{month:%Y_%m}"
    await owner.execute(
        "INSERT INTO billing_periods (month, status, closed_at, closed_by) VALUES ($1, 'closed', now(), 'bench')",
        month,
    )
    await owner.execute(
        "INSERT INTO usage_archives (month, file, rows, bytes, cost, sha256) "
        "SELECT $1, 'bench', count(*), 0, sum(cost), '\\x00' FROM usage_rows WHERE ended_at >= $2 AND ended_at < $3",
        month, start, end,
    )  # fmt: skip
    stray = f"SELECT count(*) FROM {name} WHERE ended_at < $1 OR ended_at >= $2"
    scan = await timed(
        "scan for strays, which the lock covered before",
        lambda: owner.fetchval(stray, start, end),
        lambda n: f"{n} rows",
    )
    await owner.close()

    async def drop() -> str:
        async with database.system() as connection:
            refused = await connection.scalar(text("SELECT penstock_drop_usage(:month)"), {"month": month})
        assert refused is None, refused
        return "dropped"

    async def prune() -> str:
        async with database.system() as connection:
            pruned = await connection.scalar(
                text("SELECT penstock_prune_holds(:kept, 10000)"), {"kept": HOLDS_KEPT}
            )
        assert pruned == 1, pruned
        return "one month"

    async with lock_watch(url, "usage_rows") as held:
        dropped = await timed("drop of an archived month", drop)
    usage_lock = Timing("lock of usage_rows in it", held[0])
    async with lock_watch(url, "holds") as held:
        pruned = await timed("prune of a month of holds", prune)
    return [dropped, usage_lock, scan, pruned, Timing("lock of holds in it", held[0])]


def previous_month(now: datetime) -> date:
    """The newest month that no further usage can enter, at `now`."""
    back = 1 if now.day > 4 else 2
    number = now.year * 12 + now.month - 1 - back
    return date(number // 12, number % 12 + 1, 1)
