"""Ed25519 signatures of statements and receipts: keys, signed claims and signed documents.

The signature covers the canonical JSON of {alg, type, key_id, body_sha256, pdf_sha256}; a document carries the body and
the signature. The private key is PENSTOCK_SIGNING_KEY, or a file in the data directory that is created at first use.
Public keys are stored and never deleted: a retired key signs no more, and its signatures stay valid.
"""

import hashlib
import os
import re
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.statements.canonical import canonical
from core.errors import Conflict, InvalidRequest, Unavailable
from core.settings import Settings

KEY_FILE = "signing.key"
ALGORITHM = "Ed25519"
_HEX_KEY = re.compile(r"[0-9a-f]{64}")


class Signer:
    """Signs with a private key; `seed` are its 32 bytes."""

    def __init__(self, seed: bytes) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(seed)
        self.public_key = self._private.public_key().public_bytes_raw()
        self.key_id = key_id_of(self.public_key)

    def sign(self, kind: str, body: dict[str, Any], pdf: bytes | None = None) -> dict[str, str]:
        """The claims and signature of a document of type `kind` with `body`, and of its `pdf` if any."""
        claims = {
            "alg": ALGORITHM,
            "body_sha256": sha256(canonical(body)),
            "key_id": self.key_id,
            "pdf_sha256": "" if pdf is None else sha256(pdf),
            "type": kind,
        }
        return {**claims, "value": self._private.sign(canonical(claims)).hex()}


def key_id_of(public_key: bytes) -> str:
    """The id of a public key: the first 16 hex digits of its SHA-256."""
    return hashlib.sha256(public_key).hexdigest()[:16]


def sha256(data: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def document(body: dict[str, Any], signature: dict[str, str]) -> bytes:
    """The signed file: canonical JSON of body and signature, and a newline."""
    return canonical({"body": body, "signature": signature}) + b"\n"


def check_signature(signature: dict[str, str], public_key: bytes) -> bool:
    """Whether `signature` (claims and `value`) is valid under `public_key` (32 bytes)."""
    claims = {name: value for name, value in signature.items() if name != "value"}
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(
            bytes.fromhex(signature["value"]), canonical(claims)
        )
    except (InvalidSignature, ValueError):
        return False
    return True


def load_signer(settings: Settings) -> Signer:
    """The key of the settings, or of the data directory, where it is created with mode 0600 when it is missing.

    Raises InvalidRequest for an invalid key, Unavailable when the file cannot be read or written.
    """
    given = settings.signing_key.get_secret_value().strip()
    if given:
        return Signer(_seed(given, "PENSTOCK_SIGNING_KEY"))
    path = settings.data_dir / KEY_FILE
    try:
        if not path.exists():
            write_key(path, secrets.token_bytes(32), replace=False)
        return Signer(_seed(path.read_text().strip(), str(path)))
    except OSError as error:
        raise Unavailable(
            f"the signing key {path} cannot be used ({error.strerror}); set PENSTOCK_SIGNING_KEY or --data-dir"
        ) from error


def _seed(hex_digits: str, source: str) -> bytes:
    if _HEX_KEY.fullmatch(hex_digits) is None:
        raise InvalidRequest(f"{source} must be 64 lower-case hex digits: `openssl rand -hex 32` makes one")
    return bytes.fromhex(hex_digits)


def write_key(path: Path, seed: bytes, *, replace: bool) -> None:
    """Write a private key to `path` atomically; without `replace`, an existing file stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(seed.hex() + "\n")
            file.flush()
            os.fsync(file.fileno())
        if replace:
            fresh.replace(path)
        else:
            try:
                path.hardlink_to(fresh)
            except FileExistsError:
                return
    finally:
        fresh.unlink(missing_ok=True)


class PublicKey(msgspec.Struct, frozen=True):
    """A published key to verify documents with."""

    key_id: str
    alg: str
    public_key: str
    """32 bytes in hex."""
    created_at: str
    retired_at: str | None


async def register_key(connection: AsyncConnection, signer: Signer) -> None:
    """Store the public key before it is used. Raises Conflict when the key is retired."""
    await connection.execute(
        text("INSERT INTO signing_keys (id, public_key) VALUES (:id, :key) ON CONFLICT DO NOTHING"),
        {"id": signer.key_id, "key": signer.public_key},
    )
    retired = text("SELECT retired_at FROM signing_keys WHERE id = :id")
    if await connection.scalar(retired, {"id": signer.key_id}) is not None:
        raise Conflict(f"the signing key {signer.key_id} is retired; set a new PENSTOCK_SIGNING_KEY")


async def retire_key(connection: AsyncConnection, key_id: str) -> None:
    """Retire a key: it signs no more, and its signatures stay valid."""
    await connection.execute(
        text("UPDATE signing_keys SET retired_at = clock_timestamp() WHERE id = :id AND retired_at IS NULL"),
        {"id": key_id},
    )


async def list_keys(connection: AsyncConnection) -> list[PublicKey]:
    """All keys, retired ones included, oldest first."""
    rows = await connection.execute(text("SELECT * FROM signing_keys ORDER BY created_at, id"))
    return [
        PublicKey(
            key_id=row.id,
            alg=ALGORITHM,
            public_key=bytes(row.public_key).hex(),
            created_at=format_instant(row.created_at),
            retired_at=None if row.retired_at is None else format_instant(row.retired_at),
        )
        for row in rows
    ]


def format_instant(at: datetime) -> str:
    """An instant in UTC with microseconds, such as 2026-11-01T00:00:00.000000Z."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
