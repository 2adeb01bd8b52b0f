"""The embedded servers: they keep data across a kill, run side by side, and change no other files or processes."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import psutil
import pytest
from redis.asyncio import Redis

from core import child
from core.embedded import EmbeddedPostgres, EmbeddedRedis
from core.errors import Unavailable
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
