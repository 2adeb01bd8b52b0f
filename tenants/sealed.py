"""Secrets that must be read again, encrypted under the pepper: AES-256-GCM with a key of its own for each purpose."""

import base64
import secrets
from typing import TypeVar

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from core.errors import Unavailable

_NONCE_BYTES = 12

T = TypeVar("T", bound=msgspec.Struct)


def seal(pepper: bytes, purpose: str, owner: str, plain: bytes) -> bytes:
    """`plain` encrypted for one purpose and one owner, such as the id of the row that holds it."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + AESGCM(_key(pepper, purpose)).encrypt(nonce, plain, owner.encode())


def unseal(pepper: bytes, purpose: str, owner: str, sealed: bytes) -> bytes:
    """What was sealed. Raises Unavailable when it was sealed under another pepper, for another purpose or owner."""
    try:
        return AESGCM(_key(pepper, purpose)).decrypt(
            sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], owner.encode()
        )
    except (InvalidTag, ValueError):
        raise Unavailable(
            f"the stored {purpose} cannot be read: PENSTOCK_KEY_PEPPER is not the one under which it was stored",
            code="sealed_under_another_pepper",
        ) from None


def seal_text(pepper: bytes, purpose: str, value: msgspec.Struct) -> str:
    """`value` sealed as text, which a form or cookie carries."""
    return base64.urlsafe_b64encode(seal(pepper, purpose, "", msgspec.json.encode(value))).decode()


def unseal_text(pepper: bytes, purpose: str, text: str, kind: type[T]) -> T:
    """The value that was sealed. Raises Unavailable for any other text."""
    try:
        sealed = base64.urlsafe_b64decode(text)
    except ValueError:
        sealed = b""
    return msgspec.json.decode(unseal(pepper, purpose, "", sealed), type=kind)


def _key(pepper: bytes, purpose: str) -> bytes:
    return HKDF(SHA256(), length=32, salt=None, info=f"penstock {purpose}".encode()).derive(pepper)
