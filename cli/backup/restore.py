"""Restores a backup into a new data directory, and checks its books."""

import os
import shutil
import tarfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import msgspec
from sqlalchemy import text

from billing.ledger.verification import VerificationResult, verify
from cli.backup import manifest as manifests
from cli.backup.database import has_mark
from cli.backup.manifest import DATABASE, PASSWORD, SECRETS, SPOOL, Manifest
from cli.backup.wal import readable_archive, recovery_settings
from cli.rundir import RunDir
from core.child import Account, service_account
from core.db import BATCH, Database
from core.embedded import POSTGRES_MAJOR, EmbeddedPostgres, write_private
from core.errors import InvalidRequest, Unavailable
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
    problems: list[str]
    """What is wrong with the books; empty when they are sound."""


async def restore(
    backup: Path, data_dir: Path, archive: Path | None, until: datetime | None, progress: Progress
) -> Restored:
    """Make `data_dir` from a backup, and from the `archive` of the write-ahead log as far as it goes, or to `until`.

    Its database starts once, recovers, is brought to the present schema and verified; then it is stopped. A restore
    that fails leaves nothing. Raises InvalidRequest, Unavailable.
    """
    made_of = manifests.read(backup)
    existed = _check(made_of, data_dir, archive, until)
    manifests.check_files(backup, made_of, lambda file: progress(f"checking {file.path}"))
    if archive is not None:
        archive = readable_archive(archive, backup / DATABASE / "base.tar.gz", service_account())
    run_dir = RunDir(data_dir)
    run_dir.acquire()
    server = EmbeddedPostgres(data_dir, settings=recovery_settings(archive, until))
    try:
        books, changed_at = await _restore_database(server, backup, made_of, archive is not None, progress)
        spools = _restore_files(backup, data_dir)
    except BaseException:
        _remove(data_dir, server.place()[0], keep=existed)
        raise
    finally:
        run_dir.release()
    return Restored(
        str(data_dir),
        str(backup),
        made_of.began_at,
        until,
        changed_at,
        books.transfers,
        spools,
        books.problems,
    )


async def _restore_database(
    server: EmbeddedPostgres, backup: Path, made_of: Manifest, recover: bool, progress: Progress
) -> tuple[VerificationResult, datetime | None]:
    """Unpack, recover, migrate and verify the database of a backup, and stop its server."""
    progress("unpacking the database")
    home, account = server.place()
    unpack(backup, home, account, recover=recover)
    progress("recovering the database")
    try:
        url = await server.start()
        progress("bringing the schema up to date")
        await migrate(url)
        progress("verifying the books")
        return await _verify(url, made_of)
    finally:
        await server.stop()


def _check(made_of: Manifest, data_dir: Path, archive: Path | None, until: datetime | None) -> bool:
    """Refuse a restore that cannot be; returns whether `data_dir` exists already, empty. Raises InvalidRequest."""
    if made_of.postgres_major != POSTGRES_MAJOR:
        raise InvalidRequest(
            f"the backup is of PostgreSQL {made_of.postgres_major}, and this version brings {POSTGRES_MAJOR}: "
            f"restore it with Penstock {made_of.penstock} (docs/backup.md)"
        )
    if data_dir.exists() and any(data_dir.iterdir()):
        raise InvalidRequest(f"{data_dir} is not empty; a restore makes a new data directory")
    if until is not None and archive is None:
        raise InvalidRequest("--to needs --wal-archive, the archive of the write-ahead log")
    if until is not None and until < made_of.ended_at:
        raise InvalidRequest(
            f"--to is before the end of the backup ({made_of.ended_at:%Y-%m-%dT%H:%M:%SZ}); restore an older backup"
        )
    return data_dir.exists()


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
    except (tarfile.TarError, EOFError, OSError) as error:
        raise InvalidRequest(f"{archive} cannot be unpacked: {error}") from None


async def _verify(url: str, made_of: Manifest) -> tuple[VerificationResult, datetime | None]:
    """Verify the books of the restored database, and that they are those of the backup. Raises Unavailable when they
    are not."""
    database = Database(url, name="penstock-restore", pool_size=1, timeouts=BATCH)
    try:
        if not await has_mark(database, made_of.books):
            raise Unavailable(
                f"the restored ledger is not that of the backup: link {made_of.books.seal} of its chain or transfer "
                f"{made_of.books.transfer} is missing; do the archive and the backup belong together?"
            )
        async with database.system() as connection:
            await connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
            changed_at = (await connection.execute(text(_LAST_CHANGE))).scalar_one()
            return await verify(connection), changed_at
    finally:
        await database.close()


_LAST_CHANGE = """
    SELECT greatest((SELECT max(at) FROM ledger_transfers), (SELECT max(at) FROM audit_log))
"""


def _restore_files(backup: Path, data_dir: Path) -> int:
    """Restore the secrets and the spools; returns the number of spools."""
    if (backup / SECRETS).exists():
        write_private(data_dir / "secrets.json", (backup / SECRETS).read_text())
    spools = sorted((backup / SPOOL).iterdir())
    (data_dir / "spool").mkdir(mode=0o700)
    for path in spools:
        shutil.copyfile(path, data_dir / "spool" / path.name)
        (data_dir / "spool" / path.name).chmod(0o600)
    return len(spools)


def _remove(data_dir: Path, home: Path, *, keep: bool) -> None:
    """Remove what a failed restore has made: the server's files in `home`, and what is in `data_dir`."""
    shutil.rmtree(home, ignore_errors=True)
    for path in data_dir.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if not keep:  # it did not exist before
        data_dir.rmdir()
