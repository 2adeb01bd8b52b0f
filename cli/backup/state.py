"""The files of a data directory that a backup holds beside the database: spools, secrets, keys, archives, exports."""

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from billing.metering.spool import SUFFIX
from core.errors import InvalidRequest

FILES = ("secrets.json", "signing.key", "stripe-sim.jsonl")
"""What `penstock up` made, the key that signs statements, and what the simulated Stripe knows."""
TREES = ("archive", "exports")
"""Archived months, and what scheduled exports wrote."""
SPOOL = "spool"
SET_ASIDE = ".unreadable"
"""Ending of a spool that no process settles, which is kept for an operator."""


def copy_spools(target: Path, given: Sequence[Path], own: Path | None) -> None:
    """Copy the spools of all API processes from the directories `given`, which must exist, and from `own`, which need
    not. Each keeps its name. Raises InvalidRequest for a missing directory, or two files of one name."""
    target.mkdir(mode=0o700)
    directories = dict.fromkeys(each.resolve() for each in given)
    for directory in directories:
        if not directory.is_dir():
            raise InvalidRequest(f"--spool {directory} is no directory; give the spool of an API process")
    if own is not None and own.is_dir():
        directories[own.resolve()] = None
    for directory in directories:
        for path in _spools_in(directory):
            if (target / path.name).exists():
                raise InvalidRequest(
                    f"two directories of spools have a file {path.name}; {directory} is one of them"
                )
            _copy_spool(path, target / path.name)


def _spools_in(directory: Path) -> Iterator[Path]:
    with os.scandir(directory) as entries:  # a directory that cannot be read is an error here
        names = sorted(entry.name for entry in entries)
    yield from (directory / name for name in names if name.endswith((SUFFIX, SET_ASIDE)))


def _copy_spool(source: Path, target: Path) -> None:
    """Copy a spool without the blank end of its preallocated file.

    It is whole at every instant (billing/metering/spool.py): a compaction replaces the file, and the copy goes on with
    the one that was opened. One that is gone has been settled.
    """
    try:
        reader = source.open("rb")
    except FileNotFoundError:
        return
    with reader, target.open("xb") as writer:
        used = 0
        while chunk := reader.read(1 << 16):
            if chunk.count(0) == len(chunk):
                writer.seek(len(chunk), os.SEEK_CUR)
            else:
                writer.write(chunk)
                used = writer.tell()
        writer.truncate(used)


def copy_state(source: Path, target: Path) -> None:
    """Copy FILES and TREES of the data directory `source`, as far as there are any, into `target`."""
    target.mkdir(mode=0o700, exist_ok=True)
    for name in FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
            (target / name).chmod(0o600)
    for name in TREES:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, copy_function=shutil.copyfile)


def restore_spools(source: Path, target: Path, *, set_aside: bool) -> int:
    """Copy the spools of a backup into a data directory; with `set_aside` under names that no process settles. Returns
    their number."""
    target.mkdir(mode=0o700)
    paths = sorted(source.iterdir())
    for path in paths:
        copy = target / (path.with_suffix(SET_ASIDE).name if set_aside else path.name)
        shutil.copyfile(path, copy)
        copy.chmod(0o600)
    return len(paths)
