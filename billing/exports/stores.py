"""Stores of scheduled exports: a folder below Settings.export_dir, or a bucket of an S3-compatible store.

A store never replaces a file (`put_new`). Operators write destinations as `folder/below` or `s3://bucket/prefix`; the
S3 endpoint and credentials come from the settings only, so a destination cannot name another host.
"""

import hashlib
import os
import re
import shutil
import tempfile
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from core.errors import InvalidRequest, Unavailable
from core.settings import Settings

CHUNK = 1024 * 1024
"""Bytes copied or hashed at a time."""
MAX_LENGTH = 500
"""Characters of a destination."""
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]{0,99}")
_EXISTS_CODES = ("PreconditionFailed", "412", "ConditionalRequestConflict")
_MISSING_CODES = ("NoSuchKey", "404", "NotFound")


class Store(Protocol):
    """A store of immutable files. Methods block and raise Unavailable when the store does not answer."""

    def put_new(self, path: str, file: IO[bytes]) -> bool:
        """Store the whole of `file` at `path`, atomically; False when a file exists there."""

    def read(self, path: str) -> bytes | None:
        """The content at `path`, or None without a file."""

    def digest(self, path: str) -> str | None:
        """The SHA-256 (hex) of the content at `path`, or None without a file."""

    def location(self, path: str) -> str:
        """The full address of `path` for display."""


def path_parts(text: str, what: str = "destination") -> tuple[str, ...]:
    """The parts of a relative path. Raises InvalidRequest for other characters or `..`; `what` names the parameter."""
    parts = PurePosixPath(text).parts if text else ()
    if text.startswith("/") or any(_PART.fullmatch(part) is None for part in parts):
        raise InvalidRequest(
            f"{what} must be parts of letters, digits, '.', '_', '=' and '-' between slashes, not {text[:60]!r}",
            param=what,
        )
    return parts


def check_destination(destination: str) -> None:
    """Raise InvalidRequest unless `destination` is `folder/below` or `s3://bucket/prefix`."""
    if not destination or len(destination) > MAX_LENGTH:
        raise InvalidRequest("destination must be a folder or s3://bucket/prefix", param="destination")
    if destination.startswith("s3://"):
        bucket, _, prefix = destination.removeprefix("s3://").partition("/")
        if _BUCKET.fullmatch(bucket) is None:
            raise InvalidRequest(f"{bucket[:70]!r} is no name of a bucket", param="destination")
        path_parts(prefix.strip("/"))
        return
    if not path_parts(destination):
        raise InvalidRequest("destination must be a folder or s3://bucket/prefix", param="destination")


def open_store(destination: str, settings: Settings) -> Store:
    """The store of a destination. Raises InvalidRequest for an invalid one, Unavailable without S3 credentials."""
    check_destination(destination)
    if destination.startswith("s3://"):
        bucket, _, prefix = destination.removeprefix("s3://").partition("/")
        return S3Store(bucket, prefix.strip("/"), settings)
    return FolderStore(export_dir(settings), path_parts(destination))


def export_dir(settings: Settings) -> Path:
    """The root folder of exports: Settings.export_dir, or `exports` in the data directory."""
    own = settings.export_dir
    return settings.data_dir / "exports" if own == Path() else own


class FolderStore:
    """Files below a folder, created by a hard link, which is atomic and fails when the file exists."""

    def __init__(self, root: Path, parts: tuple[str, ...] = ()) -> None:
        self._root = root.absolute()
        self._base = self._root.joinpath(*parts)

    def _path(self, path: str) -> Path:
        """The file of `path`. Raises InvalidRequest when a symbolic link leads out of the root."""
        found = self._base.joinpath(*path_parts(path, "path"))
        if not found.resolve().is_relative_to(self._root.resolve()):
            raise InvalidRequest(f"{self.location(path)} leads out of the export folder", param="destination")
        return found

    def put_new(self, path: str, file: IO[bytes]) -> bool:
        """See Store."""
        target = self._path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".part-") as part:
            file.seek(0)
            shutil.copyfileobj(file, part, CHUNK)
            part.flush()
            os.fchmod(part.fileno(), 0o640)
            os.fsync(part.fileno())
            try:
                os.link(part.name, target)
            except FileExistsError:
                return False
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return True

    def read(self, path: str) -> bytes | None:
        """See Store."""
        target = self._path(path)
        return target.read_bytes() if target.is_file() else None

    def digest(self, path: str) -> str | None:
        """See Store."""
        target = self._path(path)
        if not target.is_file():
            return None
        with target.open("rb") as file:
            return sha256_of(file)

    def location(self, path: str) -> str:
        """See Store."""
        return str(self._base.joinpath(path))


class S3Store:
    """Objects below a prefix, created by a conditional put, which fails when the object exists."""

    def __init__(self, bucket: str, prefix: str, settings: Settings) -> None:
        if (
            not settings.export_s3_key_id.get_secret_value()
        ):  # without a key, botocore would look for credentials in the environment and the instance metadata
            raise Unavailable(
                "an export to S3 needs PENSTOCK_EXPORT_S3_KEY_ID and PENSTOCK_EXPORT_S3_SECRET",
                code="export_store_unavailable",
            )
        self._bucket = bucket
        self._prefix = prefix
        self._client: Any = boto3.session.Session().client(
            "s3",
            endpoint_url=settings.export_s3_endpoint or None,
            region_name=settings.export_s3_region,
            aws_access_key_id=settings.export_s3_key_id.get_secret_value(),
            aws_secret_access_key=settings.export_s3_secret.get_secret_value(),
            config=Config(
                connect_timeout=10,
                read_timeout=120,
                retries={"max_attempts": 4, "mode": "standard"},
                request_checksum_calculation="when_required",
            ),
        )

    def _key(self, path: str) -> str:
        return "/".join(part for part in (self._prefix, *path_parts(path, "path")) if part)

    def put_new(self, path: str, file: IO[bytes]) -> bool:
        """See Store."""
        file.seek(0)
        try:
            self._client.put_object(Bucket=self._bucket, Key=self._key(path), Body=file, IfNoneMatch="*")
        except ClientError as error:
            if _code(error) in _EXISTS_CODES:
                return False
            raise _unavailable(error) from error
        except BotoCoreError as error:
            raise _unavailable(error) from error
        return True

    def _body(self, path: str) -> Any:
        try:
            return self._client.get_object(Bucket=self._bucket, Key=self._key(path))["Body"]
        except ClientError as error:
            if _code(error) in _MISSING_CODES:
                return None
            raise _unavailable(error) from error
        except BotoCoreError as error:
            raise _unavailable(error) from error

    def read(self, path: str) -> bytes | None:
        """See Store."""
        body = self._body(path)
        if body is None:
            return None
        content: bytes = body.read()
        return content

    def digest(self, path: str) -> str | None:
        """See Store."""
        body = self._body(path)
        return None if body is None else sha256_of(body)

    def location(self, path: str) -> str:
        """See Store."""
        return f"s3://{self._bucket}/{self._key(path)}"


def sha256_of(file: Any) -> str:
    """SHA-256 (hex) of the rest of `file`."""
    found = hashlib.sha256()
    while piece := file.read(CHUNK):
        found.update(piece)
    return found.hexdigest()


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _unavailable(error: Exception) -> Unavailable:
    """The error for a store's answer; it repeats only the error code."""
    what = _code(error) if isinstance(error, ClientError) else type(error).__name__
    return Unavailable(f"the export store does not take the file: {what}", code="export_store_unavailable")
