"""Takes a backup of a platform that runs or is stopped."""

from collections.abc import Callable, Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from cli.backup import state
from cli.backup.database import base_backup, local_server, mark
from cli.backup.manifest import (
    DATABASE,
    FORMAT,
    PASSWORD,
    STATE,
    BackupFile,
    Manifest,
    empty,
    file_errors,
    file_of,
    files_below,
    write,
)
from core.embedded import write_private
from core.errors import InvalidRequest

Progress = Callable[[str, int, int], None]
"""Called with a part of the work, how much of it is done, and how much there is; 0 = not known."""


class Source(NamedTuple):
    """What a backup is taken of."""

    url: str
    embedded: bool
    """Whether the database is that of `penstock up`."""
    data_dir: Path | None
    """With the secrets and the spools; None = only spools that are given."""
    spools: Sequence[Path] = ()


def new_directory(target: Path) -> Path:
    """Create the directory of a backup, readable by this account alone. Raises InvalidRequest when it has files."""
    target = target.resolve()
    try:
        target.mkdir(parents=True, exist_ok=True, mode=0o700)
        if any(target.iterdir()):
            raise InvalidRequest(f"{target} is not empty; give a new directory for each backup")
        target.chmod(0o700)
    except OSError as error:
        raise InvalidRequest(f"{target} cannot be used: {error.strerror}") from None
    return target


async def take(target: Path, source: Source, now: Callable[[], datetime], progress: Progress) -> Manifest:
    """Write a backup into the empty directory `target`, and return its manifest.

    The spools come first: a request that has ended is in its spool until it is settled in the database, so it is in one
    of the two copies whatever happens meanwhile. A failed backup leaves nothing. Raises InvalidRequest, Unavailable.
    """
    began_at = now()
    failed = f"the backup {target} cannot be written"
    try:
        with file_errors(failed):
            _copy_files(target, source)
        books, revision, server = await mark(source.url)
        await base_backup(
            local_server(source.url), target / DATABASE, lambda done, whole: progress("database", done, whole)
        )
        with file_errors(failed):
            manifest = Manifest(
                format=FORMAT,
                penstock=version("penstock"),
                began_at=began_at,
                ended_at=now(),
                embedded=source.embedded,
                postgres=server,
                schema=revision,
                books=books,
                files=_files(target, progress),
            )
            write(target, manifest)
    except BaseException:
        empty(target)
        raise
    return manifest


def _files(target: Path, progress: Progress) -> list[BackupFile]:
    """All files of the backup, which no other account can read."""
    files = []
    for path in files_below(target):
        progress(f"checksum of {path.name}", 0, 0)
        path.chmod(0o600)
        files.append(file_of(target, path))
    return files


def _copy_files(target: Path, source: Source) -> None:
    (target / STATE).mkdir(mode=0o700)
    own = source.data_dir / state.SPOOL if source.data_dir is not None else None
    state.copy_spools(target / STATE / state.SPOOL, source.spools, own)
    if source.data_dir is not None:
        state.copy_state(source.data_dir, target / STATE)
    write_private(target / PASSWORD, unquote(urlsplit(source.url).password or ""))
