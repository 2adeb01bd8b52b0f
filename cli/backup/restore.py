"""Restores a backup into a new data directory, and checks its books."""

import os
import shutil
import tarfile
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import msgspec
from sqlalchemy import text

from billing.ledger.verification import VerificationResult, verify
from cli.backup import manifest as manifests
from cli.backup import state
from cli.backup.database import has_mark
from cli.backup.manifest import DATABASE, PASSWORD, STATE, Manifest, empty, file_errors
from cli.backup.wal import readable_archive, recovery_settings
from cli.rundir import RunDir
from core.child import Account, service_account
from core.db import BATCH, Database
from core.embedded import POSTGRES_MAJOR, EmbeddedPostgres, write_private
from core.errors import Conflict, InvalidRequest, Unavailable
from core.services import migrate

Progress = Callable[[str], None]
"""Called with what is done next."""


class Restored(msgspec.Struct, frozen=True):
    """What a restore has made."""

    data_dir: str
    backup: str
    began_at: datetime
    """Of the backup: every request that had ended then is in the books, or in the spools that the start settles."""
    until: datetime | None
    """The point in time that was asked for; None = all that there is."""
    last_change_at: datetime | None
    """When the newest change of the ledger or the audit log was made."""
    transfers: int
    spools: int
    spools_set_aside: bool
    """Whether the start does not settle the spools: usage of a month that has been dropped since may be in them, and
    its rows, which would show that it is settled, are gone."""
    problems: list[str]
    """What is wrong with the books; empty when they are sound."""


class _Found(NamedTuple):
    """What the restored database says."""

    books: VerificationResult
    last_change_at: datetime | None
    dropped_at: datetime | None
    """When usage rows of a month were dropped last."""


async def restore(
    backup: Path, data_dir: Path, archive: Path | None, until: datetime | None, progress: Progress
) -> Restored:
    """Make `data_dir` from a backup, and from the `archive` of the write-ahead log as far as it goes, or to `until`.

    Its database starts once, recovers, is brought to the present schema and verified; then it is stopped. A restore
    that fails leaves nothing, and `penstock up` refuses what a killed one has left. Raises InvalidRequest, Conflict,
    Unavailable.
    """
    made_of = manifests.read(backup)
    _check(made_of, archive, until)
    manifests.check_files(backup, made_of, lambda file: progress(f"checking {file.path}"))
    if archive is not None:
        archive = readable_archive(archive, backup / DATABASE / "base.tar.gz", service_account())
    run_dir, server, existed = _claim(data_dir, recovery_settings(archive, until))
    try:
        with file_errors(f"{data_dir} cannot be made"):
            run_dir.restoring.touch()
            progress("unpacking the database")
            home, account = server.place()
            unpack(backup, home, account, recover=archive is not None)
        found = await _recover(server, made_of, progress)
        set_aside = found.dropped_at is not None and found.dropped_at > made_of.began_at
        with file_errors(f"{data_dir} cannot be made"):
            state.copy_state(backup / STATE, data_dir)
            spools = state.restore_spools(
                backup / STATE / state.SPOOL, data_dir / state.SPOOL, set_aside=set_aside
            )
            run_dir.restoring.unlink()
    except BaseException:
        _remove(data_dir, server.place()[0], keep=existed)
        raise
    finally:
        run_dir.release()
    return Restored(
        data_dir=str(data_dir),
        backup=str(backup),
        began_at=made_of.began_at,
        until=until,
        last_change_at=found.last_change_at,
        transfers=found.books.transfers,
        spools=spools,
        spools_set_aside=set_aside and spools > 0,
        problems=found.books.problems,
    )


def _check(made_of: Manifest, archive: Path | None, until: datetime | None) -> None:
    """Refuse a restore that cannot be. Raises InvalidRequest."""
    if not made_of.embedded:
        raise InvalidRequest(
            "the backup is of a server of your own: unpack it there by hand (docs/backup.md); `penstock restore` is "
            "for the database of `penstock up`"
        )
    if made_of.postgres_major != POSTGRES_MAJOR:
        raise InvalidRequest(
            f"the backup is of PostgreSQL {made_of.postgres_major}, and this version brings {POSTGRES_MAJOR}: "
            f"restore it with Penstock {made_of.penstock} (docs/backup.md)"
        )
    if until is not None and archive is None:
        raise InvalidRequest("--to needs --wal-archive, the archive of the write-ahead log")
    if until is not None and until < made_of.ended_at:
        raise InvalidRequest(
            f"--to is before the end of the backup ({made_of.ended_at:%Y-%m-%dT%H:%M:%SZ}); restore an older backup"
        )


def _claim(data_dir: Path, settings: dict[str, str]) -> tuple[RunDir, EmbeddedPostgres, bool]:
    """Lock a data directory that is new or empty; returns its server, too, and whether the directory existed.

    Raises InvalidRequest when something is there, also the database of a directory that was at this path before.
    """
    existed = data_dir.exists()
    if existed and any(data_dir.iterdir()):
        raise InvalidRequest(f"{data_dir} is not empty; a restore makes a new data directory")
    run_dir = RunDir(data_dir)
    run_dir.acquire()
    if sorted(each.name for each in data_dir.iterdir()) != ["lock", "logs"]:
        run_dir.release()
        raise Conflict(f"another process has begun to use {data_dir}; give another directory")
    server = EmbeddedPostgres(data_dir, settings=settings)
    cluster = server.place()[0] / "cluster"
    if cluster.exists():
        _clear(data_dir, keep=existed)
        run_dir.release()
        raise InvalidRequest(
            f"{cluster} is the database of a directory that was at {data_dir} before: remove it if it is not needed, "
            "or restore into a directory of another name"
        )
    return run_dir, server, existed


def unpack(backup: Path, home: Path, account: Account | None, *, recover: bool) -> None:
    """Unpack the database of a backup into `home`, for the server's account. With `recover` it goes on with the archive
    of the write-ahead log."""
    cluster = home / "cluster"
    cluster.mkdir(mode=0o700)
    _extract(backup / DATABASE / "base.tar.gz", cluster)
    _extract(backup / DATABASE / "pg_wal.tar.gz", cluster / "pg_wal")
    if recover:
        (cluster / "recovery.signal").touch(mode=0o600)
    write_private(home / "password", (backup / PASSWORD).read_text())
    if account is not None:
        for directory, names, files in os.walk(home):
            for name in (".", *names, *files):
                os.chown(Path(directory) / name, account.uid, account.gid, follow_symlinks=False)


def _extract(archive: Path, target: Path) -> None:
    """Unpack a tar file; nothing in it may lie outside `target`. Raises InvalidRequest when it is damaged."""
    target.mkdir(exist_ok=True, mode=0o700)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            tar.extractall(target, filter="data")
    except (tarfile.TarError, EOFError) as error:
        raise InvalidRequest(f"{archive} cannot be unpacked: {error}") from None


async def _recover(server: EmbeddedPostgres, made_of: Manifest, progress: Progress) -> _Found:
    """Recover, migrate and verify an unpacked database, and stop its server."""
    progress("recovering the database")
    try:
        url = await server.start()
        progress("bringing the schema up to date")
        await migrate(url)
        progress("verifying the books")
        return await _verify(url, made_of)
    finally:
        await server.stop()


async def _verify(url: str, made_of: Manifest) -> _Found:
    """Verify the books of the restored database, and that they are those of the backup. Raises Unavailable when they
    are not."""
    database = Database(url, name="penstock-restore", pool_size=1, timeouts=BATCH)
    try:
        if not await has_mark(database, made_of.books):
            raise Unavailable(
                f"the restored ledger is not that of the backup: link {made_of.books.seal} of its chain or transfer "
                f"{made_of.books.transfer} is missing; do the archive and the backup belong together?"
            )
        async with database.snapshot() as connection:
            row = (await connection.execute(text(_FACTS))).one()
            return _Found(await verify(connection), row.changed_at, row.dropped_at)
    finally:
        await database.close()


_FACTS = """
    SELECT greatest((SELECT max(at) FROM ledger_transfers), (SELECT max(at) FROM audit_log)) AS changed_at,
        (SELECT max(dropped_at) FROM usage_archives) AS dropped_at
"""


def _remove(data_dir: Path, home: Path, *, keep: bool) -> None:
    """Remove what a failed restore has made: the server's files in `home`, and what is in `data_dir`."""
    shutil.rmtree(home, ignore_errors=True)
    if home.parent != data_dir.resolve():
        with suppress(OSError):  # other files of the account may be there
            home.parent.rmdir()
    _clear(data_dir, keep=keep)


def _clear(data_dir: Path, *, keep: bool) -> None:
    """Remove what is in `data_dir`, and without `keep` the directory, which did not exist before."""
    empty(data_dir)
    if not keep:
        data_dir.rmdir()
