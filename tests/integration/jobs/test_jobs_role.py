"""The jobs role as a real process, and jobs that run twice."""

import asyncio
import signal
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from redis.asyncio import Redis
from sqlalchemy import text

from billing.ledger import credits
from billing.metering.holds import HoldManager
from core.clock import SystemClock
from core.db import Database
from core.ids import uuid7
from core.money import usd_to_pico
from core.outbox import enqueue
from core.settings import Settings
from jobs.app import Runner
from jobs.outbox import IMMEDIATE_RETRIES, dispatch
from jobs.work import Job, schedule
from tenants.logins import count_attempt
from tests.integration.billing.invoicing.support import Platform
from tests.integration.billing.support import make_customer, price
from tests.support.jobs_role import jobs_role
from tests.support.waiting import until

_STATE = {
    "transfers": "SELECT kind, count(*), sum(amount) FROM ledger_transfers GROUP BY kind ORDER BY kind",
    "accounts": "SELECT tenant_id, balance, owed, invoiced, held, open_holds FROM billing_accounts ORDER BY 1",
    "lots": "SELECT id, remaining FROM credit_grants ORDER BY id",
    "draws": "SELECT count(*), sum(amount) FROM grant_draws",
    "invoices": "SELECT tenant_id, month, total_cents FROM invoices ORDER BY 1, 2",
    "lines": "SELECT count(*), sum(cents) FROM invoice_lines",
    "report": "SELECT sum(requests), sum(input_tokens), sum(output_tokens), sum(cost) FROM usage_hours",
    "seals": "SELECT count(*) FROM ledger_seals",
    "unsealed": "SELECT count(*) FROM ledger_unsealed",
    "notices": "SELECT kind, count(*) FROM notices GROUP BY kind ORDER BY kind",
}
"""What jobs change in these books."""


async def _books_with_work(platform: Platform, pg_url: str) -> None:
    """A month to invoice, hours to roll up, credit that has expired, a hold of a process that died."""
    database = platform.database
    await price(database)
    postpaid = await make_customer(database, name="Postpaid", mode="postpaid")
    await platform.use(postpaid, input=3_000_000)
    prepaid = await make_customer(database, "10", name="Prepaid")
    await platform.use(prepaid, input=1_000_000)
    async with database.system() as connection:
        await credits.add_lot(
            connection, lot_id=uuid7(), tenant_id=prepaid.tenant_id, amount=usd_to_pico("5"), kind="promotional",
            reason="r", created_by="t", expires_at=await platform.clock.now() + timedelta(days=1),
        )  # fmt: skip
    await platform.end_month()
    manager = HoldManager(pg_url, "api", ttl_s=60, clock=SystemClock(), timeout_s=30.0)
    await manager.start()
    await manager.place(prepaid.hold())
    await manager.close()


@pytest.mark.promise(11)
async def test_every_job_may_run_twice_and_at_once(pg_url: str) -> None:
    platform = await Platform.begin(pg_url)
    database, settings = platform.database, Settings(database_url=pg_url)
    await _books_with_work(platform, pg_url)

    async def state() -> dict[str, list[tuple[Any, ...]]]:
        return {name: [tuple(row) for row in await platform.rows(sql)] for name, sql in _STATE.items()}

    try:
        before = await state()
        for job in schedule(settings):
            await asyncio.gather(*(job.work(database, settings) for _ in range(3)))
        [reaper] = [job for job in schedule(settings) if job.name == "penstock.reap"]
        for _ in range(8):  # the time to live, in steps that are no absence of the reaper
            await platform.clock.set(await platform.clock.now() + timedelta(seconds=settings.hold_ttl_s / 4))
            await reaper.work(database, settings)
        for job in schedule(settings):
            await job.work(database, settings)
        once = await state()
        assert [
            name for name in _STATE if name not in ("unsealed", "notices") and before[name] == once[name]
        ] == []
        assert [total for _, _, total in once["invoices"]] == [300, 100]
        assert [row[1:] for row in once["accounts"] if row[4]] == [], "the hold was released"
        assert once["unsealed"] == [(0,)]
        for _ in range(2):
            for job in schedule(settings):
                await asyncio.gather(*(job.work(database, settings) for _ in range(2)))
            assert await state() == once
        await platform.is_sound()
    finally:
        await database.close()


def test_each_job_has_its_own_connection_and_a_seldom_job_keeps_none(pg_url: str) -> None:
    """A backend that runs every job keeps the plans of all of them, and there is one for each thread."""
    runner = Runner(Settings(database_url=pg_url))
    pids: dict[str, set[int]] = {"often": set(), "other": set(), "seldom": set()}

    def job(name: str, every_s: float) -> Job:
        async def work(database: Database, settings: Settings) -> int:
            async with database.system() as connection:
                pids[name].add((await connection.execute(text("SELECT pg_backend_pid()"))).scalar_one())
            return 0

        return Job(f"penstock.{name}", every_s, work)

    jobs = [job("often", 2.0), job("other", 2.0), job("seldom", 60.0)]
    for _ in range(3):  # each round on threads of its own
        for each in jobs:
            with ThreadPoolExecutor(1) as thread:
                thread.submit(runner.run, each).result(60)
    assert (len(pids["often"]), len(pids["other"]), len(pids["seldom"])) == (1, 1, 3)
    assert not pids["often"] & pids["other"]

    async def alive() -> set[int]:
        connection = await asyncpg.connect(pg_url)
        try:
            return {row["pid"] for row in await connection.fetch("SELECT pid FROM pg_stat_activity")}
        finally:
            await connection.close()

    async def seldom_are_gone() -> bool:
        return not pids["seldom"] & await alive()

    asyncio.run(until(seldom_are_gone))
    assert pids["often"] | pids["other"] <= asyncio.run(alive())
    runner.close()


async def test_old_changes_and_sign_in_failures_are_deleted(database: Database, pg_url: str) -> None:
    settings = Settings(database_url=pg_url)
    await make_customer(database, "1")  # writes to the change feed
    async with database.system() as connection:
        assert await count_attempt(connection, "a@example.com", "10.0.0.1") is None
        assert await count_attempt(connection, "b@example.com", "") is None
    owner = await asyncpg.connect(pg_url)
    try:
        changes = await owner.fetchval("SELECT count(*) FROM tenancy_changes")
        await owner.execute("UPDATE tenancy_changes SET at = at - interval '8 days' WHERE id % 2 = 0")
        await owner.execute(
            "UPDATE login_failures SET window_start = window_start - interval '1 hour' WHERE subject <> "
            "(SELECT min(subject) FROM login_failures)"
        )
        [prune] = [job for job in schedule(settings) if job.name == "penstock.prune"]
        assert prune.every_s == 24 * 3600
        pruned = await prune.work(database, settings)
        left = await owner.fetchval("SELECT count(*) FROM tenancy_changes")
        assert 0 < left < changes
        assert await owner.fetchval("SELECT count(*) FROM login_failures") == 1
        assert pruned == changes - left + 3
        assert await prune.work(database, settings) == 0
    finally:
        await owner.close()


async def test_only_completed_work_is_deleted(database: Database, pg_url: str) -> None:
    [prune] = [job for job in schedule(Settings(database_url=pg_url)) if job.name == "penstock.prune"]
    async with database.system() as connection:
        for done, n in (("now() - interval '31 days'", 1), ("now()", 2), ("NULL", 3)):
            await connection.execute(
                text(f"INSERT INTO outbox (topic, payload, done_at) VALUES ('t', '{n}', {done})")
            )
        await connection.execute(
            text(
                "INSERT INTO stripe_events "
                "(id, type, object_kind, object_id, created_at, found_by, applied_at, outcome) "
                "SELECT 'evt_' || d, 't', 'customer', 'c', 'epoch', 'list', "
                "CASE WHEN d > 0 THEN now() - make_interval(days => d) END, "
                "CASE WHEN d > 0 THEN 'ignored' END FROM unnest(ARRAY[0, 89, 91]) d"
            )
        )
        await connection.execute(
            text(
                "INSERT INTO stripe_reconciliations (id, month, began_at, at, ok, facts) "
                "SELECT gen_random_uuid(), month::date, 'epoch', now() - make_interval(days => d), true, '{}' "
                "FROM (VALUES ('2026-01-01', 99), ('2026-01-01', 98), ('2026-02-01', 31), ('2026-02-01', 1)) "
                "AS v (month, d)"
            )
        )
    assert await prune.work(database, Settings(database_url=pg_url)) == 4
    async with database.read() as connection:
        left = "SELECT payload::text FROM outbox WHERE topic = 't' ORDER BY id"
        assert (await connection.scalars(text(left))).all() == ["2", "3"]
        assert (await connection.scalars(text("SELECT id FROM stripe_events ORDER BY id"))).all() == [
            "evt_0",
            "evt_89",
        ]
        kept = "SELECT month::text, round(extract(epoch FROM now() - at) / 86400)::int FROM stripe_reconciliations"
        assert sorted(map(tuple, await connection.execute(text(kept)))) == [
            ("2026-01-01", 98),
            ("2026-02-01", 1),
        ]


@pytest.mark.promise(11)
async def test_the_outbox_runs_each_row_and_keeps_what_fails(database: Database) -> None:
    async with database.system() as connection:
        for number in range(5):
            await enqueue(connection, "good", {"n": number})
        await enqueue(connection, "bad", {})
        await enqueue(connection, "unheard-of", {})
    seen: list[int] = []

    async def good(payload: dict[str, int]) -> None:
        seen.append(payload["n"])

    async def bad(payload: dict[str, int]) -> None:
        raise RuntimeError("not today")

    done = await asyncio.gather(*(dispatch(database, {"good": good, "bad": bad}) for _ in range(3)))
    assert sum(done) == 5
    assert sorted(seen) == [0, 1, 2, 3, 4]
    async with database.system() as connection:
        rows = await connection.execute(text("SELECT topic FROM outbox WHERE done_at IS NULL ORDER BY id"))
        assert rows.scalars().all() == ["bad", "unheard-of"]


async def test_failing_rows_do_not_block_others(database: Database) -> None:
    async with database.system() as connection:
        for _ in range(4):
            await enqueue(connection, "bad", {})
        await enqueue(connection, "good", {})
    seen: list[str] = []

    async def good(payload: dict[str, int]) -> None:
        seen.append("good")

    async def bad(payload: dict[str, int]) -> None:
        seen.append("bad")
        raise RuntimeError("never")

    runs = 0
    while "good" not in seen:
        await dispatch(database, {"good": good, "bad": bad}, limit=4)
        runs += 1
        assert runs <= IMMEDIATE_RETRIES + 2
    assert seen.count("bad") == 4 * (IMMEDIATE_RETRIES + 1)


async def test_the_row_of_a_killed_dispatcher_is_claimed_again(database: Database) -> None:
    async with database.system() as connection:
        await enqueue(connection, "work", {})
    calls = 0

    async def killed(payload: dict[str, int]) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise asyncio.CancelledError
        async with database.read() as connection:
            idle = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND query ~ 'outbox'"
            assert await connection.scalar(text(idle)) == 0, "no transaction waits while a handler works"

    with pytest.raises(asyncio.CancelledError):
        await dispatch(database, {"work": killed})
    assert await dispatch(database, {"work": killed}) == 0
    async with database.system() as connection:
        await connection.execute(text("UPDATE outbox SET next_at = next_at - interval '600 seconds'"))
    assert await dispatch(database, {"work": killed}) == 1
    assert calls == 2


@pytest.mark.promise(9)
@pytest.mark.timeout(120)
async def test_the_role_seals_survives_an_emptied_redis_and_stops(
    database: Database, pg_url: str, redis_url: str, redis_client: Redis, tmp_path: Path
) -> None:
    with jobs_role(pg_url, redis_url, tmp_path) as role:
        await make_customer(database, "1")
        await until(lambda: _sealed(database, 1), timeout_s=60)
        await redis_client.flushall()
        await make_customer(database, "1", name="Later")
        await until(lambda: _sealed(database, 2), timeout_s=60)
        assert role.healthy()
        assert role.runs("penstock.seal") > 0
        role.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(role.process.wait, 30) == 0


async def _sealed(database: Database, count: int) -> bool:
    async with database.system() as connection:
        return bool(
            (await connection.execute(text("SELECT count(*) FROM ledger_seals"))).scalar_one() == count
        )
