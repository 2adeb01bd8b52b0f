"""The manifest of a backup: what it is of, and a checksum of every file."""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import msgspec

from core.errors import InvalidRequest
from core.whole_file import replace_file

FORMAT = 1
"""Number of the layout; a restore refuses others."""
FILE = "manifest.json"
DATABASE = Path("database")
"""Below the backup: what pg_basebackup wrote, base.tar.gz and pg_wal.tar.gz."""
STATE = Path("state")
"""Below the backup: files of the data directory, the spools among them (state.py)."""
PASSWORD = Path("database-password")
_CHUNK = 1 << 20


class BackupFile(msgspec.Struct, frozen=True):
    """A file of a backup."""

    path: str
    """Below the backup's directory."""
    bytes: int
    sha256: str


class Books(msgspec.Struct, frozen=True):
    """A mark in the ledger when a backup began. A restored ledger that has it is the same up to there."""

    seal: int
    """Number of the newest link of the hash chain; 0 = none."""
    seal_hash: str
    """Its hash, hexadecimal."""
    transfer: int
    """Largest id of a transfer; 0 = none."""


class Manifest(msgspec.Struct, frozen=True):
    """What a backup is of."""

    format: int
    penstock: str
    """Version that wrote it."""
    began_at: datetime
    """Every request that ended before is in the backup."""
    ended_at: datetime
    embedded: bool
    """Whether the database is that of `penstock up`; one of another server is restored by hand."""
    postgres: int
    """server_version_num, such as 180001."""
    schema: str
    """Revision of the database's schema."""
    books: Books
    files: list[BackupFile]

    @property
    def postgres_major(self) -> int:
        """Major version of the server: its files can be read by this one alone."""
        return self.postgres // 10_000

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(file.bytes for file in self.files)


def file_of(root: Path, path: Path) -> BackupFile:
    """The entry of the file `path` below `root`."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return BackupFile(str(path.relative_to(root)), path.stat().st_size, digest.hexdigest())


def files_below(root: Path) -> Iterator[Path]:
    """All files of a backup but the manifest, in order."""
    for directory, names, files in os.walk(root):
        names.sort()
        for name in sorted(files):
            path = Path(directory) / name
            if path != root / FILE:
                yield path


def empty(directory: Path) -> None:
    """Remove all that is in a directory."""
    for path in directory.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def sync(path: Path) -> None:
    """Write a file or directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def file_errors(what: str) -> Iterator[None]:
    """Translate an error of the file system into InvalidRequest, as `what` cannot be done."""
    try:
        yield
    except OSError as error:
        raise InvalidRequest(f"{what}: {error.filename or ''} {error.strerror or error}") from None


def write(root: Path, manifest: Manifest) -> None:
    """Write all to the disk, and then the manifest, which makes the directory a backup."""
    for directory, _, files in os.walk(root):
        for name in files:
            sync(Path(directory) / name)
        sync(Path(directory))
    replace_file(root / FILE, msgspec.json.format(msgspec.json.encode(manifest)) + b"\n", 0o600)


def read(root: Path) -> Manifest:
    """Read the manifest of a backup. Raises InvalidRequest when there is none, or it is of another format."""
    path = root / FILE
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except OSError as error:
        raise InvalidRequest(
            f"{root} is no complete backup: {path.name} cannot be read ({error.strerror})"
        ) from None
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"{path} is damaged ({error}); use another backup") from None
    if manifest.format != FORMAT:
        raise InvalidRequest(
            f"{root} has the backup format {manifest.format}; this version reads {FORMAT}: "
            f"restore it with Penstock {manifest.penstock}"
        )
    return manifest


def check_files(root: Path, manifest: Manifest, on_file: Callable[[BackupFile], None]) -> None:
    """Compare every file with its checksum; `on_file` is called before each. Raises InvalidRequest with the first
    difference."""
    for expected in manifest.files:
        on_file(expected)
        path = root / expected.path
        if not path.resolve().is_relative_to(root.resolve()):
            raise InvalidRequest(f"the manifest of {root} names a file outside: {expected.path}")
        try:
            found = file_of(root, path)
        except OSError as error:
            raise InvalidRequest(f"{path} cannot be read ({error.strerror}); use another backup") from None
        if found != expected:
            raise InvalidRequest(
                f"{path} has changed since the backup: {found.bytes} bytes, SHA-256 {found.sha256[:16]}..., expected "
                f"{expected.bytes} bytes, {expected.sha256[:16]}...; use another backup"
            )
