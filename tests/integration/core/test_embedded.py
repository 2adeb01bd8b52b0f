"""The embedded servers: they keep data across a kill, run side by side, and change no other files or processes."""

import asyncio
import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import psutil
import pytest
from redis.asyncio import Redis

from core import child
from core.embedded import EmbeddedPostgres, EmbeddedRedis, ServerState
from core.errors import Unavailable
from core.log_files import MAX_BYTES
from tests.support.processes import gone
from tests.support.waiting import until, until_sync

ROOT = Path(__file__).resolve().parents[3]

# A process that starts both servers, prints their URLs and pids, and waits to be killed.
_HOLDER = """
import asyncio, sys
from pathlib import Path
from core.embedded import EmbeddedPostgres, EmbeddedRedis

async def main():
    data = Path(sys.argv[1])
    postgres, redis = EmbeddedPostgres(data), EmbeddedRedis(data)
    print(await postgres.start(), await redis.start(), postgres.pid, redis.pid, flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A directory that other accounts may traverse, unlike those of pytest."""
    root = Path(tempfile.mkdtemp(prefix="penstock-embedded-"))
    root.chmod(0o755)
    yield root / "data"
    shutil.rmtree(root)


@pytest.fixture
def holder(data_dir: Path) -> Callable[[], tuple[subprocess.Popen[str], list[str]]]:
    def start() -> tuple[subprocess.Popen[str], list[str]]:
        process = subprocess.Popen(
            [sys.executable, "-c", _HOLDER, str(data_dir)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        return process, process.stdout.readline().split()

    return start


async def remember(postgres_url: str, redis_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    await connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    await connection.close()
    async with Redis.from_url(redis_url) as client:
        await client.set("answer", 42)


async def recall(postgres_url: str, redis_url: str | None = None) -> int:
    connection = await asyncpg.connect(postgres_url)
    answer = await connection.fetchval("SELECT answer FROM kept")
    await connection.close()
    if redis_url is not None:
        async with Redis.from_url(redis_url) as client:
            assert await client.get("answer") == b"42"
    return int(answer)


async def test_servers_end_with_a_killed_owner_and_keep_data(data_dir: Path, holder: Callable) -> None:
    process, [postgres_url, redis_url, *pids] = holder()
    await remember(postgres_url, redis_url)
    process.kill()
    process.communicate()
    for pid in map(int, pids):
        await until(lambda pid=pid: gone(pid))
    postgres, redis = EmbeddedPostgres(data_dir), EmbeddedRedis(data_dir)
    try:
        assert await recall(await postgres.start(), await redis.start()) == 42
    finally:
        await redis.stop()
        await postgres.stop()
    assert postgres.pid == redis.pid == 0


async def test_a_killed_server_leaves_a_stale_pid_file_and_starts_again_on_its_port(data_dir: Path) -> None:
    postgres = EmbeddedPostgres(data_dir)
    url = await postgres.start()
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    await connection.close()
    os.kill(postgres.pid, signal.SIGKILL)
    await until(lambda: postgres.pid == 0)
    try:
        assert await postgres.start() == url
        assert await recall(url) == 42
    finally:
        await postgres.stop()


async def test_an_orphan_still_running_is_stopped_first(data_dir: Path) -> None:
    """An orphan as after a crash on a system without PR_SET_PDEATHSIG."""
    first = EmbeddedPostgres(data_dir)
    await first.start()
    orphan = first.pid
    second = EmbeddedPostgres(data_dir)
    try:
        await second.start()
        assert second.pid not in (0, orphan)
        assert gone(orphan)
    finally:
        await second.stop()
        await first.stop()


async def test_a_pid_file_of_another_process_stops_nothing(data_dir: Path) -> None:
    postgres = EmbeddedPostgres(data_dir)
    await postgres.start()
    await postgres.stop()
    pid_file = next((data_dir / "postgres" / "cluster").glob("PG_VERSION")).with_name("postmaster.pid")
    stranger = child.spawn(["sleep", "600"], log=subprocess.DEVNULL)
    pid_file.write_text(f"{stranger.pid}\n")
    try:
        await postgres.start()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
        await postgres.stop()


async def test_two_data_directories_can_be_used_at_once(data_dir: Path) -> None:
    servers = [EmbeddedPostgres(data_dir / "a"), EmbeddedPostgres(data_dir / "b")]
    try:
        urls = [await server.start() for server in servers]
        assert servers[0].port != servers[1].port
        connection = await asyncpg.connect(urls[0])
        await connection.execute("CREATE TABLE only_here ()")
        await connection.close()
        connection = await asyncpg.connect(urls[1])
        assert await connection.fetchval("SELECT to_regclass('only_here')") is None
        await connection.close()
    finally:
        for server in servers:
            await server.stop()


async def test_only_the_password_opens_and_only_loopback_listens(data_dir: Path) -> None:
    postgres, redis = EmbeddedPostgres(data_dir), EmbeddedRedis(data_dir)
    try:
        url, redis_url = await postgres.start(), await redis.start()
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(url.replace("penstock:", "penstock:x", 1))
        listening = {
            connection.laddr.ip
            for pid in (postgres.pid, redis.pid)
            for connection in psutil.Process(pid).net_connections()
            if connection.status == psutil.CONN_LISTEN
        }
        assert listening == {"127.0.0.1"}
        arguments = " ".join(psutil.Process(postgres.pid).cmdline() + psutil.Process(redis.pid).cmdline())
        assert redis_url.split(":")[2].split("@")[0] not in arguments
        connection = await asyncpg.connect(url)
        settings = {
            name: await connection.fetchval(f"SHOW {name}")
            for name in ("max_connections", "synchronous_commit", "TimeZone", "unix_socket_directories")
        }
        await connection.close()
        assert settings == {
            "max_connections": "200",
            "synchronous_commit": "on",
            "TimeZone": "UTC",
            "unix_socket_directories": "",
        }
    finally:
        await redis.stop()
        await postgres.stop()


class SlowRedis(EmbeddedRedis):
    """Loads each key of its data with a delay, as if there were very many."""

    key_load_delay_us = 0

    def _command(self) -> list[str]:
        command = super()._command()
        with Path(command[-1]).open("a") as config:
            config.write(f"key-load-delay {self.key_load_delay_us}\n")
        return command


async def test_redis_may_load_for_as_long_as_it_makes_progress(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = SlowRedis(data_dir)
    url = await server.start()
    keys, limit_s = 40_000, 3.0
    async with Redis.from_url(url) as client:
        pipeline = client.pipeline()
        for number in range(keys):
            pipeline.set(f"key-{number}", "x" * 100)
        await pipeline.execute()
    await server.stop()
    monkeypatch.setattr("core.embedded._START_TIMEOUT_S", limit_s)
    monkeypatch.setattr(SlowRedis, "key_load_delay_us", 100)
    began = time.monotonic()
    try:
        await server.start()
        assert time.monotonic() - began > limit_s
        async with Redis.from_url(server.url) as client:
            assert await client.dbsize() == keys
    finally:
        await server.stop()


async def test_a_server_that_loads_and_does_not_get_on_is_given_up(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stuck(EmbeddedRedis):
        async def _state(self) -> ServerState:
            return ServerState.LOADING

        async def _work_done(self) -> float:
            return 7.0

    monkeypatch.setattr("core.embedded._START_TIMEOUT_S", 0.2)
    with pytest.raises(Unavailable, match="redis did not start"):
        await Stuck(data_dir).start()


async def test_postgresql_in_its_recovery_is_loading_and_its_work_is_seen(data_dir: Path) -> None:
    """The replay of a large log is held up by a stopped startup process; the work that it has done stays the same."""
    postgres = EmbeddedPostgres(data_dir, settings={"fsync": "off", "checkpoint_timeout": "1h"})
    url = await postgres.start()
    connection = await asyncpg.connect(url)
    await connection.execute(
        "CREATE TABLE rows AS SELECT n, repeat('x', 200) AS text FROM generate_series(1, 300000) n"
    )
    await connection.close()
    first = psutil.Process(postgres.pid)
    for each in [first, *first.children()]:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    await until(lambda: postgres.pid == 0)
    starting = asyncio.create_task(postgres.start())
    try:
        replay = await until(lambda: replaying(postgres.pid))
        replay.suspend()
        assert await postgres._state() is ServerState.LOADING
        done = await postgres._work_done()
        assert done > 0
        assert await postgres._work_done() == done
        replay.resume()
        assert await starting == url
        connection = await asyncpg.connect(url)
        assert await connection.fetchval("SELECT count(*) FROM rows") == 300_000
        await connection.close()
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await postgres.stop()


def replaying(postmaster: int) -> psutil.Process | None:
    """PostgreSQL's process that replays the write-ahead log, once it has begun."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for each in psutil.Process(postmaster).children() if postmaster else []:
            if (
                any("startup" in part for part in each.cmdline())
                and each.io_counters().read_chars > 1_000_000
            ):
                return each
    return None


async def test_a_large_log_is_moved_aside_while_the_server_runs(data_dir: Path) -> None:
    server = EmbeddedRedis(data_dir)
    await server.start()
    try:
        log = data_dir / "redis" / "redis.log"
        os.truncate(log, MAX_BYTES + 1)
        server.rotate_log()
        assert log.with_suffix(".log.1").stat().st_size == MAX_BYTES + 1
        assert log.stat().st_size == 0
    finally:
        await server.stop()
    assert 0 < log.stat().st_size < MAX_BYTES, "its last words follow"


async def test_a_fixed_port_that_is_taken_is_named(data_dir: Path, redis_url: str) -> None:
    taken = int(redis_url.rsplit(":", 1)[1].split("/")[0])
    with pytest.raises(Unavailable, match=f"did not start on port {taken}"):
        await EmbeddedRedis(data_dir, port=taken).start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root drops to another account")
async def test_as_root_below_a_closed_directory(tmp_path: Path) -> None:
    """The data is then stored elsewhere and found again, and no mode of a parent changes."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    data_dir = closed / "data"
    postgres = EmbeddedPostgres(data_dir)
    url = await postgres.start()
    try:
        assert psutil.Process(postgres.pid).uids().real != 0
        connection = await asyncpg.connect(url)
        await connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        await connection.close()
    finally:
        await postgres.stop()
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    home = Path((data_dir / "postgres.location").read_text().strip())
    try:
        assert not home.is_relative_to(tmp_path)
        again = EmbeddedPostgres(data_dir)
        try:
            assert await recall(await again.start()) == 42
        finally:
            await again.stop()
    finally:
        shutil.rmtree(home.parent)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root drops to another account")
def test_binaries_in_a_closed_directory_are_copied_once(tmp_path: Path) -> None:
    """In a checkout below /root the service account cannot execute the server's binary."""
    account = child.service_account()
    assert account is not None
    closed = tmp_path / "closed"
    (closed / "tree" / "bin").mkdir(parents=True)
    (closed / "tree" / "bin" / "server").write_text("x")
    closed.chmod(0o700)
    copy = child.reachable_copy(closed / "tree", tmp_path, account)
    try:
        assert child.may_traverse(copy, account)
        assert (copy / "bin" / "server").read_text() == "x"
        assert child.reachable_copy(closed / "tree", tmp_path, account) == copy
        assert child.reachable_copy(closed / "tree", tmp_path, None) == closed / "tree"
        assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    finally:
        shutil.rmtree(copy.parent)


def test_a_child_ends_with_its_parent(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time; from core import child;"
        "print(child.spawn(['sleep', '600'], log=subprocess.DEVNULL).pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    until_sync(lambda: gone(pid))


def test_traversal_needs_every_directory_above(tmp_path: Path) -> None:
    account = child.Account(uid=54_321, gid=54_321)
    open_dir = tmp_path / "open"
    open_dir.mkdir(mode=0o755)
    for part in tmp_path.parents:
        if part.owner() == tmp_path.owner() and part.is_relative_to(tempfile.gettempdir()):
            part.chmod(part.stat().st_mode | 0o111)
    tmp_path.chmod(0o755)
    assert child.may_traverse(open_dir, account)
    tmp_path.chmod(0o700)
    assert not child.may_traverse(open_dir, account)
    assert not child.may_traverse(open_dir / "missing", account)
