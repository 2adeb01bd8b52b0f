"""The archive of PostgreSQL's write-ahead log, from which a restore goes on after a base backup.

An archive belongs to one data directory, for good: a restored platform writes another history under the same names. So
both have the same random id, and a restored data directory has none.
"""

import os
import re
import secrets
import stat
import subprocess
import tarfile
import time
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from core.child import Account, may_traverse
from core.embedded import postgres_program, write_private
from core.errors import InvalidRequest, Unavailable

ARCHIVE_EVERY_S = 60
"""Seconds after which a segment of the log is archived although it is not full: what a lost disk may cost."""
ARCHIVED_WITHIN_S = 60.0
"""Seconds for which a prune waits for the first segment of a backup."""
ID_FILE = "penstock-archive-id"
NO_ARCHIVE = Path("none")
"""Given in place of a directory to go on without an archive."""
RECORD = "wal-archive.json"
"""In the data directory: its archive, with which every later start goes on."""


class ArchiveRecord(msgspec.Struct, frozen=True):
    """The archive of a data directory."""

    path: str
    id: str


def recorded_archive(data_dir: Path) -> Path | None:
    """The archive with which the server of `data_dir` ran before; None = it has none. Raises InvalidRequest."""
    record = _read_record(data_dir)
    return None if record is None else Path(record.path)


def _read_record(data_dir: Path) -> ArchiveRecord | None:
    path = data_dir / RECORD
    try:
        return msgspec.json.decode(path.read_bytes(), type=ArchiveRecord)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"{path} is damaged ({error}); remove it and give a new --wal-archive") from None


def prepare_archive(directory: Path, data_dir: Path, account: Account | None) -> Path:
    """Make `directory` the archive of `data_dir`, or go on with it; returns its absolute path.

    Raises InvalidRequest when it is the archive of another data directory or has other files, and when the account of
    the server cannot write there.
    """
    directory = directory.resolve()
    record = _read_record(data_dir)
    try:
        if not directory.exists():
            directory.mkdir(parents=True, mode=0o700)
            if account is not None:
                os.chown(directory, account.uid, account.gid)
        id_file = directory / ID_FILE
        found = id_file.read_text().strip() if id_file.exists() else ""
        if found and (record is None or record.id != found):
            raise InvalidRequest(
                f"the archive {directory} belongs to another data directory, or to the one from which {data_dir} was "
                "restored: give a new directory, and take a backup once the platform runs"
            )
        if not found:
            if any(directory.iterdir()):
                raise InvalidRequest(f"{directory} is not empty and no archive: give a new directory")
            found = secrets.token_hex(16)
            write_private(id_file, found + "\n")
            id_file.chmod(0o644)
    except OSError as error:
        raise InvalidRequest(f"the archive {directory} cannot be used: {error.strerror}") from None
    if account is not None and not (
        _may_write(directory, account) and may_traverse(directory.parent, account)
    ):
        raise InvalidRequest(
            f"the account that runs PostgreSQL cannot write {directory}: `chown {account.uid} {directory}`, below "
            "directories that are open (o+x)"
        )
    write_private(
        data_dir / RECORD, msgspec.json.encode(ArchiveRecord(str(directory), found)).decode() + "\n"
    )
    return directory


def server_settings(data_dir: Path, wanted: Path | None, account: Account | None) -> dict[str, str]:
    """Settings of the server of `data_dir` for its archive: `wanted`, or the one of before. With NO_ARCHIVE the one of
    before ends where it is, and cannot be taken up again. Raises InvalidRequest."""
    if wanted == NO_ARCHIVE:
        (data_dir / RECORD).unlink(missing_ok=True)
        return {}
    directory = wanted or recorded_archive(data_dir)
    return {} if directory is None else archive_settings(prepare_archive(directory, data_dir, account))


def _quoted(path: Path) -> str:
    """A path for a shell command in a setting of PostgreSQL, where % begins a placeholder."""
    text = str(path)
    if any(character in text for character in "'\\\n"):
        raise InvalidRequest(f"the archive's path may have no quote, backslash or line break: {text!r}")
    return "'" + text.replace("%", "%%") + "'"


def archive_settings(directory: Path) -> dict[str, str]:
    """Settings of a server that archives its log in `directory`, an absolute path.

    A segment is written under another name, synced and renamed, so that a crash leaves no part of one. One that is
    there already is compared, as PostgreSQL's manual demands (26.3.1): a server may archive it again after a crash.
    """
    quoted = _quoted(directory)
    target, scratch = f"{quoted}/%f", f"{quoted}/.%f.part"
    copy = f'cp "%p" {scratch} && sync {scratch} && mv {scratch} {target} && sync {quoted}'
    return {
        "archive_mode": "on",
        "archive_timeout": str(ARCHIVE_EVERY_S),
        "archive_command": f'if [ -f {target} ]; then cmp -s "%p" {target}; else {copy}; fi',
    }


def recovery_settings(archive: Path | None, until: datetime | None) -> dict[str, str]:
    """Settings of a server that recovers a base backup and serves when it is done: to the end of the archive, to
    `until`, or without an archive to the end of the backup."""
    settings = {"hot_standby": "off", "recovery_target_action": "promote", "archive_mode": "off"}
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
    first = first_segment(base)
    names = [path.name for path in directory.iterdir() if _SEGMENT.fullmatch(path.name)]
    if others := sorted(name for name in names if name[:8] > first[:8]):
        raise InvalidRequest(
            f"the archive {directory} has the segment {others[0]} of a later timeline: more than one server has "
            "written it, and what a restore would bring back is not known"
        )
    if missing := missing_segment(names, first):
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


def _may_write(path: Path, account: Account) -> bool:
    info = path.stat()
    return bool(info.st_mode & (stat.S_IWUSR if info.st_uid == account.uid else stat.S_IWOTH))


def missing_segment(names: Collection[str], first: str) -> str | None:
    """The first segment that an archive lacks from `first` to the newest of its timeline; None when it is whole."""
    timeline = first[:8]
    numbers = {_number(name) for name in names if name[:8] == timeline}
    start = _number(first)
    newest = max(numbers | {start})
    lacking = next((number for number in range(start, newest + 1) if number not in numbers), None)
    return None if lacking is None else f"{timeline}{lacking // _PER_FILE:08X}{lacking % _PER_FILE:08X}"


def _number(segment: str) -> int:
    """Position of a segment of 16 MiB in the log of its timeline."""
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
    deadline = time.monotonic() + ARCHIVED_WITHIN_S  # the server archives while the backup ends
    while not (archive / segment).exists() and time.monotonic() < deadline:
        time.sleep(0.2)
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
