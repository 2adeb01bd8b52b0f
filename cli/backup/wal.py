"""The archive of PostgreSQL's write-ahead log, from which a restore goes on after a base backup."""

import os
import re
import stat
import subprocess
import tarfile
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path

from core.child import Account, may_traverse
from core.embedded import postgres_program
from core.errors import InvalidRequest, Unavailable

ARCHIVE_EVERY_S = 60
"""Seconds after which a segment of the log is archived although it is not full: what a lost disk may cost."""


def _quoted(path: Path) -> str:
    """A path for a shell command in a setting of PostgreSQL, where % begins a placeholder."""
    text = str(path)
    if any(character in text for character in "'\\\n"):
        raise InvalidRequest(f"the archive's path may have no quote, backslash or line break: {text!r}")
    return "'" + text.replace("%", "%%") + "'"


def prepare_archive(directory: Path, account: Account | None) -> Path:
    """Create the archive's directory for the account of the server, and return its absolute path.

    Raises InvalidRequest when the account cannot reach it.
    """
    directory = directory.resolve()
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if account is not None:
            os.chown(directory, account.uid, account.gid)
    except OSError as error:
        raise InvalidRequest(f"the archive {directory} cannot be used: {error.strerror}") from None
    if account is not None and not may_traverse(directory.parent, account):
        raise InvalidRequest(
            f"the account that runs PostgreSQL cannot reach {directory}: use a directory whose parents are open (o+x)"
        )
    return directory


def archive_settings(directory: Path) -> dict[str, str]:
    """Settings of a server that archives its log in `directory`, an absolute path.

    A segment is written under another name, synced and renamed, so that a crash leaves no part of one. One that is
    there already is compared, as PostgreSQL's manual demands (26.3.1): a server may archive it again after a crash.
    """
    quoted = _quoted(directory)
    target, scratch = f"{quoted}/%f", f"{quoted}/.%f.part"
    copy = f'cp "%p" {scratch} && sync {scratch} && mv {scratch} {target}'
    return {
        "archive_mode": "on",
        "archive_timeout": str(ARCHIVE_EVERY_S),
        "archive_command": f'if [ -f {target} ]; then cmp -s "%p" {target}; else {copy}; fi',
    }


def recovery_settings(archive: Path | None, until: datetime | None) -> dict[str, str]:
    """Settings of a server that recovers a base backup and serves when it is done: to the end of the archive, to
    `until`, or without an archive to the end of the backup."""
    settings = {"hot_standby": "off", "recovery_target_action": "promote"}
    if archive is not None:
        settings["restore_command"] = f'cp {_quoted(archive)}/%f "%p"'
    if until is not None:
        settings["recovery_target_time"] = f"{until.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}+00"
    return settings


def readable_archive(directory: Path, base: Path, account: Account | None) -> Path:
    """The absolute path of an archive from which a restore of the base backup `base` can go on.

    PostgreSQL takes a segment that it cannot read for the end of the archive, so that a restore would lose the rest
    without a word. Raises InvalidRequest when a segment is missing or closed to the server's account.
    """
    directory = directory.resolve()
    if not directory.is_dir():
        raise InvalidRequest(f"the archive {directory} is no directory")
    names = [path.name for path in directory.iterdir() if _SEGMENT.fullmatch(path.name)]
    if missing := missing_segment(names, first_segment(base)):
        raise InvalidRequest(
            f"the archive {directory} lacks the segment {missing}; without it later ones are of no use"
        )
    if account is not None:
        closed = [name for name in names if not _may_read(directory / name, account)]
        if closed or not may_traverse(directory, account):
            raise InvalidRequest(
                f"the account that runs PostgreSQL cannot read {directory / closed[0] if closed else directory}: "
                f"give it the archive with `chown -R {account.uid} {directory}`, below directories that are open (o+x)"
            )
    return directory


def _may_read(path: Path, account: Account) -> bool:
    info = path.stat()
    return bool(info.st_mode & (stat.S_IRUSR if info.st_uid == account.uid else stat.S_IROTH))


def missing_segment(names: Collection[str], first: str) -> str | None:
    """The first segment that an archive lacks from `first` to its newest; None when it is whole."""
    numbers = {_number(name) for name in names}
    start = _number(first)
    newest = max(numbers | {start})
    lacking = next((number for number in range(start, newest + 1) if number not in numbers), None)
    return None if lacking is None else f"{first[:8]}{lacking // _PER_FILE:08X}{lacking % _PER_FILE:08X}"


def _number(segment: str) -> int:
    """Position of a segment of 16 MiB in the log, whatever its timeline."""
    return int(segment[8:16], 16) * _PER_FILE + int(segment[16:], 16)


_SEGMENT = re.compile(r"[0-9A-F]{24}")
_PER_FILE = 256
"""Segments of 16 MiB for each value of the middle part of their names."""


def first_segment(base: Path) -> str:
    """The first segment of the log that the base backup `base`, a base.tar.gz, needs. Raises InvalidRequest."""
    with tarfile.open(base, "r:gz") as tar:
        for member in tar:
            file = tar.extractfile(member) if member.name == "backup_label" else None
            if file is not None and (found := _START.search(file.read())):
                return found[1].decode()
    raise InvalidRequest(f"{base} names no segment where it begins")


_START = re.compile(rb"START WAL LOCATION: \S+ \(file ([0-9A-F]{24})\)")


def prune_archive(archive: Path, base: Path) -> int:
    """Remove the segments of an archive that come before the base backup `base`; returns how many. Backups that were
    taken earlier can then be restored to their own end alone.

    Raises InvalidRequest when the archive is not that of this database, and Unavailable when the program fails.
    """
    segment = first_segment(base)
    if not (archive / segment).exists():
        raise InvalidRequest(
            f"{archive} has no segment {segment}, with which the backup begins; nothing was removed"
        )
    before = len(list(archive.iterdir()))
    command = [str(postgres_program("pg_archivecleanup")), str(archive), segment]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - no part is input
    if done.returncode:
        raise Unavailable(f"pg_archivecleanup failed: {done.stderr.strip()}")
    return before - len(list(archive.iterdir()))
