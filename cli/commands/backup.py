"""`penstock backup` and `penstock restore`."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from billing.usage.period import parse_instant
from cli.backup import manifest as manifests
from cli.backup.restore import restore as restore_backup
from cli.backup.take import new_directory, take
from cli.backup.wal import prune_archive
from cli.context import DEFAULT_DATA_DIR, AsJson, emit, run, runtime
from cli.rundir import RunDir
from cli.server_errors import database_url
from core.embedded import EmbeddedPostgres
from core.errors import InvalidRequest, Unavailable

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
        place = data_dir or Path(os.environ.get("PENSTOCK_DATA_DIR") or DEFAULT_DATA_DIR)
        async with _server(place) as url:
            directory = new_directory(target)
            with _bars() as bars:
                task = bars.add_task("backing up", total=None)

                def progress(what: str, done: int, whole: int) -> None:
                    bars.update(task, description=what, completed=done, total=whole or None)

                made = await take(directory, url, place, spool or [], lambda: datetime.now(UTC), progress)
        if prune is not None:
            prune_archive(prune, directory / manifests.DATABASE / "base.tar.gz")
        return made

    made = run(act)
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

    if not run(act):
        raise typer.Exit(1)


def _instant(text: str) -> datetime:
    async def parsed() -> datetime:
        return parse_instant(text, "to")

    return run(parsed)


@asynccontextmanager
async def _server(place: Path) -> AsyncIterator[str]:
    """The address of the database: DATABASE_URL, that of a running `penstock up`, or of its server, which is started
    for the time of the backup. Raises Unavailable when there is no platform in `place`."""
    if url := os.environ.get("DATABASE_URL"):
        yield database_url(url)
        return
    if (place / "runtime.json").exists():
        yield database_url(str(runtime(place)["database_url"]))
        return
    if not (place / "secrets.json").exists():
        raise Unavailable(
            f"{place} is no data directory of `penstock up`; give --data-dir, or set DATABASE_URL"
        )
    run_dir = RunDir(place)
    await asyncio.to_thread(run_dir.acquire)
    server = EmbeddedPostgres(place)
    try:
        yield await server.start()
    finally:
        await server.stop()
        run_dir.release()


def _bars() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)
