"""A backup under load, the loss of the whole disk, and what a restore brings back."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from core.child import service_account, service_home
from core.embedded import EmbeddedPostgres
from tests.support import load
from tests.support.invariants import money_is_sound, rows_by_request, settled_everything
from tests.support.load import Seen
from tests.support.stack import ROOT, Stack, Tenant
from tests.support.waiting import until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

MODEL = "penstock/tiny"


async def asked(stack: Stack, tenant: Tenant, count: int) -> list[Seen]:
    """Requests that are answered whole, one after the other."""
    answers = []
    async with load.session() as session:
        for _ in range(count):
            seen = Seen()
            await load.stream(session, stack.base_url, tenant.key, MODEL, max_tokens=8, seen=seen)
            assert seen.finished, seen
            answers.append(seen)
    return answers


async def going_on(stack: Stack, tenant: Tenant, stop: asyncio.Event) -> list[Seen]:
    """Requests until `stop`."""
    answers = []
    while not stop.is_set():
        answers += await asked(stack, tenant, 1)
    return answers


async def archived(stack: Stack, archive: Path) -> None:
    """Wait until all that the database has written so far is in the archive."""
    database = await stack.connect()
    try:
        name = await database.fetchval("SELECT pg_walfile_name(pg_switch_wal())")
    finally:
        await database.close()
    await until(lambda: (archive / name).exists())


def lose_everything(stack: Stack) -> None:
    """Kill all processes at once, and delete the data directory."""
    processes = stack.processes()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    assert stack.process is not None
    stack.process.wait()
    for process in processes[1:]:
        process.wait(30)
    homes = [stack.data_dir, *(Path(each.read_text().strip()) for each in stack.data_dir.glob("*.location"))]
    for home in homes:
        subprocess.run(["rm", "-rf", str(home)], check=True)


def restored(backup: Path, data_dir: Path, *words: str, code: int = 0) -> Any:
    """Run `penstock restore`; its result, or what it says on standard error when `code` is not 0."""
    command = [sys.executable, "-m", "cli.main", "restore", str(backup), "--data-dir", str(data_dir), *words]
    done = subprocess.run(
        [*command, "--json"], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == code, f"{done.stdout}{done.stderr}"
    return done.stderr if code else msgspec.json.decode(done.stdout)


async def books_of(stack: Stack) -> dict[str, Any]:
    """Every transfer, the links that seal them, every balance and every usage row, as digests with their counts."""
    database = await stack.connect()
    try:
        return {
            table: tuple(
                await database.fetchrow(
                    f"SELECT count(*), md5(string_agg(t::text, E'\\n' ORDER BY t::text)) FROM {table} t"
                )
            )
            for table in ("ledger_transfers", "ledger_balances", "usage", "billing_accounts")
        }
    finally:
        await database.close()


async def exists(stack: Stack, name: str) -> bool:
    """Whether an organisation of this name exists."""
    database = await stack.connect()
    try:
        return bool(await database.fetchval("SELECT count(*) FROM tenants WHERE name = $1", name))
    finally:
        await database.close()


@contextlib.asynccontextmanager
async def nothing_settles(stack: Stack) -> AsyncIterator[None]:
    """No settlement goes through, so that what is answered meanwhile is in the spool alone."""
    database = await stack.connect()
    try:
        async with database.transaction():
            await database.execute("LOCK TABLE usage IN EXCLUSIVE MODE")
            yield
    finally:
        await database.close()


async def test_a_lost_disk_is_restored_to_a_point_in_time_and_to_the_end_of_a_backup(tmp_path: Path) -> None:
    archive, backup = service_home(tmp_path, "wal", service_account()), tmp_path / "backup"
    stack = Stack(tmp_path / "data", "--engine", "sim", "--wal-archive", str(archive)).start()
    try:
        tenant = stack.make_tenant("Harbour")
        before = await asked(stack, tenant, 2)
        await settled_everything(stack, tenant.id)
        async with nothing_settles(stack):
            before += await asked(stack, tenant, 1)
            stop = asyncio.Event()
            running = asyncio.create_task(going_on(stack, tenant, stop))
            said = await asyncio.to_thread(stack.command, "backup", str(backup), "--json")
            stop.set()
            during = await running
        after = await asked(stack, tenant, 2)
        await settled_everything(stack, tenant.id)
        books = await books_of(stack)
        instant = datetime.now(UTC)
        stack.make_tenant("Too late")  # an act after the point in time
        await archived(stack, archive)
    finally:
        lose_everything(stack)
    whole = {one.request_id for one in [*before, *during, *after]}

    again = Stack(tmp_path / "again", "--engine", "sim")
    result = restored(backup, again.data_dir, "--wal-archive", str(archive), "--to", instant.isoformat())
    assert result["problems"] == []
    assert datetime.fromisoformat(result["last_change_at"]) <= instant
    again.start()
    try:
        assert await books_of(again) == books
        assert set(await rows_by_request(again, tenant.id)) == whole
        await asked(again, tenant, 1)  # the key of before, so the secrets are those of before
        await settled_everything(again, tenant.id)
        await money_is_sound(again, tenant.id)
        assert not await exists(again, "Too late")
    finally:
        again.stop()
    await asyncio.to_thread(refuses_what_is_damaged, again, archive, tmp_path)

    alone = Stack(tmp_path / "alone", "--engine", "sim")
    result = restored(backup, alone.data_dir)
    assert (result["problems"], result["spools"]) == ([], 1)
    assert result["began_at"] == msgspec.json.decode(said)["began_at"]
    alone.start()
    try:
        wanted = {one.request_id for one in before}

        async def has_those_before() -> bool:
            return wanted <= set(await rows_by_request(alone, tenant.id))

        await until(has_those_before)
        rows = await rows_by_request(alone, tenant.id)
        assert set(rows) <= whole
        assert [rows[name]["output_tokens"] for name in wanted] == [8, 8, 8]
        found = msgspec.json.decode(await asyncio.to_thread(alone.command, "ledger", "verify", "--json"))
        assert found["problems"] == []
    finally:
        alone.stop()


def refuses_what_is_damaged(stopped: Stack, archive: Path, tmp_path: Path) -> None:
    """A platform that is stopped can be backed up; a restore that fails says why and leaves nothing."""
    backup, new = tmp_path / "second", tmp_path / "new"
    stopped.command("backup", str(backup))
    modes = {each: os.stat(each).st_mode & 0o077 for each in [backup, *backup.rglob("*")]}
    assert set(modes.values()) == {0}, modes  # no other account can read it
    assert "is no directory" in restored(backup, new, "--wal-archive", str(tmp_path / "none"), code=2)
    assert "is not empty" in restored(backup, stopped.data_dir, code=2)
    beyond = ["--wal-archive", str(archive), "--to", "2999-01-01"]
    said = restored(tmp_path / "backup", new, *beyond, code=2)
    assert "recovery ended before configured recovery target was reached" in said
    assert not new.exists()
    with (backup / "database" / "base.tar.gz").open("r+b") as file:
        file.seek(1000)
        file.write(b"\0" * 16)
    assert "has changed since the backup" in restored(backup, new, code=2)
    assert not new.exists()


def started(data_dir: Path, *flags: str) -> str:
    """What `penstock up` says when it refuses to start."""
    words = [
        "up",
        "--data-dir",
        str(data_dir),
        "--engine",
        "sim",
        "--port",
        "0",
        "--console-port",
        "0",
        *flags,
    ]
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2, f"{done.stdout}{done.stderr}"
    return done.stderr


async def test_the_archive_goes_on_through_a_backup_of_a_stopped_platform_and_belongs_to_it_alone(
    tmp_path: Path,
) -> None:
    archive, first, second = service_home(tmp_path, "wal", service_account()), tmp_path / "1", tmp_path / "2"
    stack = Stack(tmp_path / "data", "--engine", "sim", "--wal-archive", str(archive)).start()
    stack.command("backup", str(first))
    assert stack.stop() == 0
    stack.command("backup", str(second), "--prune-archive", str(archive))
    assert "lacks the segment" in restored(first, tmp_path / "new", "--wal-archive", str(archive), code=2)
    result = restored(second, tmp_path / "new", "--wal-archive", str(archive))
    assert result["problems"] == []
    said = started(tmp_path / "new", "--wal-archive", str(archive))
    assert "belongs to another data directory" in said

    # A database that outlived its directory is not touched.
    home, account = EmbeddedPostgres(tmp_path / "gone").place()
    (home / "cluster").mkdir()
    for pointer in (tmp_path / "gone").iterdir():
        if account is not None and home.parent != tmp_path / "gone":
            pointer.unlink()
    if not any((tmp_path / "gone").iterdir()):
        assert "the database of a directory that was at" in restored(second, tmp_path / "gone", code=2)
        assert (home / "cluster").is_dir()

    # What a killed restore has left does not start.
    killed = tmp_path / "killed"
    command = [sys.executable, "-m", "cli.main", "restore", str(second), "--data-dir", str(killed)]
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    await until(lambda: (killed / "restoring").exists() or process.poll() is not None)
    process.kill()
    process.wait()
    assert "a restore of" in started(killed)
