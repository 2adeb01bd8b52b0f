"""The jobs role without its Redis: it ends on SIGTERM within a bounded time, and works again when Redis is back."""

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import pytest

from core.embedded import EmbeddedRedis
from tests.support.jobs_role import JobsRole, jobs_role
from tests.support.waiting import until, until_sync

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

START_S = 240.0
"""The longest that a role may take to begin its work; its imports alone take half a minute of a busy machine."""
STOP_S = 60.0
"""The longest that an idle role may take to end."""


@pytest.fixture
async def own_redis(tmp_path: Path) -> AsyncIterator[EmbeddedRedis]:
    """A Redis that the test may stop and freeze."""
    server = EmbeddedRedis(tmp_path)
    await server.start()
    yield server
    await server.stop()


@contextmanager
def frozen(server: EmbeddedRedis) -> Iterator[None]:
    """The server accepts connections and answers nothing."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


def seals(role: JobsRole, more_than: float = 0.0) -> None:
    """Wait until the sealer, due every two seconds, has run again."""
    until_sync(lambda: role.runs("penstock.seal") > more_than, START_S, "a run of the sealer")


def stops(role: JobsRole) -> None:
    role.process.send_signal(signal.SIGTERM)
    assert role.process.wait(STOP_S) == 0


async def test_the_role_outlives_a_frozen_redis_and_stops_before_one(
    pg_url: str, own_redis: EmbeddedRedis, tmp_path: Path
) -> None:
    with jobs_role(pg_url, own_redis.url, tmp_path) as role:
        seals(role)
        with frozen(own_redis):
            until_sync(lambda: "Timeout reading from" in role.log(), START_S)
        seals(role, more_than=role.runs("penstock.seal"))
        assert role.healthy()
        with frozen(own_redis):
            stops(role)


async def test_the_role_outlives_a_dead_redis_and_stops_after_one(
    pg_url: str, own_redis: EmbeddedRedis, tmp_path: Path
) -> None:
    with jobs_role(pg_url, own_redis.url, tmp_path) as role:
        seals(role)
        await own_redis.stop()
        until_sync(lambda: "Couldn't apply scheduled task" in role.log(), START_S)
        await own_redis.start()
        seals(role, more_than=role.runs("penstock.seal"))
        await own_redis.stop()
        stops(role)


async def test_the_role_stops_where_redis_never_was(
    pg_url: str, own_redis: EmbeddedRedis, tmp_path: Path
) -> None:
    await own_redis.stop()
    with jobs_role(pg_url, own_redis.url, tmp_path) as role:
        until_sync(lambda: "beat: Connection error" in role.log(), START_S)
        until_sync(lambda: "consumer: Cannot connect" in role.log(), START_S)
        stops(role)


async def test_a_job_that_never_ends_does_not_hold_up_the_stop(
    pg_url: str, own_redis: EmbeddedRedis, tmp_path: Path
) -> None:
    """Celery waits for its jobs without a limit, and Python for their threads."""
    owner = await asyncpg.connect(pg_url)
    try:
        with jobs_role(pg_url, own_redis.url, tmp_path, stop_s=2.0) as role:
            seals(role)
            transaction = owner.transaction()
            await transaction.start()
            await owner.execute("LOCK TABLE ledger_unsealed IN ACCESS EXCLUSIVE MODE")
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"

            async def blocked() -> bool:
                return bool(await owner.fetchval(waiting))

            await until(blocked)
            role.process.send_signal(signal.SIGTERM)
            assert role.process.wait(STOP_S) == 1
            assert "the stop took longer than it may" in role.log()
            await transaction.rollback()
    finally:
        await owner.close()
