"""Takes a backup of a platform that runs or is stopped."""

import os
import shutil
from collections.abc import Callable
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from urllib.parse import unquote, urlsplit

from billing.metering.spool import SUFFIX
from cli.backup.database import base_backup, local_server, mark
from cli.backup.manifest import (
    DATABASE,
    FORMAT,
    PASSWORD,
    SECRETS,
    SPOOL,
    Manifest,
    file_of,
    files_below,
    write,
)
from core.embedded import write_private
from core.errors import InvalidRequest

Progress = Callable[[str, int, int], None]
"""Called with a part of the work, how much of it is done, and how much there is; 0 = not known."""


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


async def take(
    target: Path,
    url: str,
    data_dir: Path,
    spools: list[Path],
    now: Callable[[], datetime],
    progress: Progress,
) -> Manifest:
    """Write a backup of the database at `url`, of the spools of `data_dir` and of the directories `spools`, and of the
    secrets of `data_dir` into the empty directory `target`. Returns its manifest.

    The spools come first: a request that has ended is in its spool until it is settled in the database, so it is in one
    of the two copies whatever happens meanwhile. A failed backup leaves nothing. Raises InvalidRequest, Unavailable.
    """
    began_at = now()
    try:
        copy_spools(target / SPOOL, [data_dir / "spool", *spools])
        _copy_secrets(target, data_dir, url)
        books, revision, server = await mark(url)
        await base_backup(
            local_server(url), target / DATABASE, lambda done, whole: progress("database", done, whole)
        )
        files = []
        for path in files_below(target):
            progress(f"checksum of {path.name}", 0, 0)
            path.chmod(0o600)
            files.append(file_of(target, path))
        manifest = Manifest(FORMAT, version("penstock"), began_at, now(), server, revision, books, files)
        write(target, manifest)
    except BaseException:
        _empty(target)
        raise
    return manifest


def _empty(directory: Path) -> None:
    for path in directory.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def copy_spools(target: Path, sources: list[Path]) -> None:
    """Copy the spools of all API processes. Each keeps its name; the blank end of a file takes no room."""
    target.mkdir(mode=0o700)
    for source in sources:
        for path in sorted(source.glob(f"*{SUFFIX}")):
            if (target / path.name).exists():
                raise InvalidRequest(
                    f"two directories of spools have a file {path.name}: {source} is one of them"
                )
            _copy_sparse(path, target / path.name)


def _copy_sparse(source: Path, target: Path) -> None:
    """Copy a file without writing its blocks of zeros. The file is whole at every instant (billing/metering/spool.py):
    a compaction replaces it, and the copy goes on with the one that was opened."""
    with source.open("rb") as reader, target.open("xb") as writer:
        while chunk := reader.read(1 << 16):
            if chunk.count(0) == len(chunk):
                writer.seek(len(chunk), os.SEEK_CUR)
            else:
                writer.write(chunk)
        writer.truncate()


def _copy_secrets(target: Path, data_dir: Path, url: str) -> None:
    """Copy the secrets of `penstock up`, where it made them, and the password of the database."""
    secrets = data_dir / "secrets.json"
    if secrets.exists():
        write_private(target / SECRETS, secrets.read_text())
    write_private(target / PASSWORD, unquote(urlsplit(url).password or ""))
