"""`penstock backup` and `penstock restore`."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from billing.usage.period import parse_instant
from cli.backup import manifest as manifests
from cli.backup.restore import restore as restore_backup
from cli.backup.take import Source, new_directory, take
from cli.backup.wal import prune_archive, server_settings
from cli.context import DEFAULT_DATA_DIR, AsJson, emit, exit_with_error, run, runtime
from cli.rundir import RunDir
from cli.server_errors import database_url
from core.child import service_account
from core.embedded import EmbeddedPostgres
from core.errors import Conflict, InvalidRequest, Unavailable

T = TypeVar("T")

app = typer.Typer()

BackupDir = Annotated[Path, typer.Argument(help="Directory of the backup.", metavar="BACKUP")]


@app.command(epilog="Example: penstock backup /backups/2026-11-29 --data-dir .penstock")
def backup(
    target: Annotated[Path, typer.Argument(help="New directory of the backup.", metavar="BACKUP")],
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Data directory of `penstock up`, running or stopped.")
    ] = None,
    spool: Annotated[
        list[Path] | None,
        typer.Option("--spool", help="Spool directory of API processes elsewhere; repeat it for several."),
    ] = None,
    prune: Annotated[
        Path | None,
        typer.Option(
            "--prune-archive",
            help="Archive of the write-ahead log: remove what this backup and later ones do not need.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Back up the database, the usage that is not settled, and the secrets. The platform goes on meanwhile."""

    async def act() -> manifests.Manifest:
        async with _ended_by_signals(), _source(data_dir, spool or []) as source:
            directory = new_directory(target)
            with _bars() as bars:
                task = bars.add_task("backing up", total=None)

                def progress(what: str, done: int, whole: int) -> None:
                    bars.update(task, description=what, completed=done, total=whole or None)

                made = await take(directory, source, lambda: datetime.now(UTC), progress)
            if prune is not None:
                await asyncio.to_thread(prune_archive, prune, directory / manifests.DATABASE / "base.tar.gz")
        return made

    made = _run(act)
    emit(
        {
            "backup": str(target),
            "began_at": made.began_at,
            "ended_at": made.ended_at,
            "files": len(made.files),
            "bytes": made.bytes,
            "schema": made.schema,
            "ledger_transfer": made.books.transfer,
        },
        as_json,
    )


@app.command(epilog="Example: penstock restore /backups/2026-11-29 --data-dir restored")
def restore(
    source: BackupDir,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="New data directory, for `penstock up --data-dir`.")
    ] = None,
    archive: Annotated[
        Path | None,
        typer.Option("--wal-archive", help="Archive of the write-ahead log, to go on after the backup."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--to", help="Instant in UTC to restore to; default: the end of the archive."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only compare the backup's files with their checksums.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a data directory from a backup, and verify its books. Exit code 1 when they are not sound."""
    instant = None if until is None else _instant(until)

    async def act() -> bool:
        async with _ended_by_signals():
            return await act_on()

    async def act_on() -> bool:
        with _bars() as bars:
            task = bars.add_task("restoring", total=None)

            def progress(what: str) -> None:
                bars.update(task, description=what)

            if check:
                made_of = manifests.read(source)
                manifests.check_files(source, made_of, lambda file: progress(f"checking {file.path}"))
                found: object = {"backup": str(source), "files": len(made_of.files), "bytes": made_of.bytes}
                sound = True
            elif data_dir is None:
                raise InvalidRequest("give --data-dir, the data directory to make, or --check")
            else:
                restored = await restore_backup(source, data_dir, archive, instant, progress)
                found, sound = restored, not restored.problems
        emit(found, as_json)
        return sound

    if not _run(act):
        raise typer.Exit(1)


def _instant(text: str) -> datetime:
    async def parsed() -> datetime:
        return parse_instant(text, "to")

    return run(parsed)


@asynccontextmanager
async def _source(data_dir: Path | None, spools: Sequence[Path]) -> AsyncIterator[Source]:
    """What is backed up: the server of DATABASE_URL, with a data directory only if one is given; a running `penstock
    up`; or one that is stopped, whose server is started for the time of the backup. Raises Unavailable when there is
    no platform in the data directory."""
    place = data_dir or _path_of("PENSTOCK_DATA_DIR")
    if url := os.environ.get("DATABASE_URL"):
        yield Source(database_url(url), embedded=False, data_dir=place, spools=spools)
        return
    place = place or Path(DEFAULT_DATA_DIR)
    if not (place / "secrets.json").exists():
        raise Unavailable(
            f"{place} is no data directory of `penstock up`; give --data-dir, or set DATABASE_URL"
        )
    run_dir = RunDir(place)
    try:
        await asyncio.to_thread(run_dir.acquire)
    except Conflict:  # it runs
        facts = runtime(place)
        own = bool(facts["pids"].get(EmbeddedPostgres.name))
        yield Source(database_url(str(facts["database_url"])), embedded=own, data_dir=place, spools=spools)
        return
    server = EmbeddedPostgres(place, settings=server_settings(place, None, service_account()))
    try:
        yield Source(await server.start(), embedded=True, data_dir=place, spools=spools)
    finally:
        await server.stop()
        run_dir.release()


def _run(act: Callable[[], Awaitable[T]]) -> T:
    try:
        return run(act)
    except (asyncio.CancelledError, KeyboardInterrupt):
        exit_with_error("stopped; nothing was written")


def _path_of(variable: str) -> Path | None:
    return Path(os.environ[variable]) if os.environ.get(variable) else None


@asynccontextmanager
async def _ended_by_signals() -> AsyncIterator[None]:
    """End the work inside in order at SIGTERM and SIGHUP, as at SIGINT, so that nothing half-done is left."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - it runs in one
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGHUP)
    for each in signals:
        loop.add_signal_handler(each, task.cancel)
    try:
        yield
    finally:
        for each in signals:
            loop.remove_signal_handler(each)


def _bars() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)
