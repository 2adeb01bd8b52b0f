"""The format of keys and tokens: `pen_<kind>_<32 random characters><6 characters of checksum>`, all base62.

The checksum refuses a mistyped or truncated key without a look-up and lets secret scanners recognise keys; it is no
protection. Only an HMAC-SHA256 with a pepper is stored: 190 random bits need no slow hash, and a stolen table is
useless without the pepper.
"""

import base64
import hmac
import re
import secrets
import string
import zlib
from typing import Literal
from uuid import UUID

KeyKind = Literal["live", "test"]
SecretKind = Literal["live", "test", "admin"]

ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
RANDOM_LENGTH = 32
"""Random characters: log2(62**32) = 190 bits."""
CHECKSUM_LENGTH = 6
"""Characters of the CRC-32 in base62: 62**6 > 2**32."""

_SHAPE = re.compile(
    rf"(pen_(?:live|test|admin)_[0-9A-Za-z]{{{RANDOM_LENGTH}}})([0-9A-Za-z]{{{CHECKSUM_LENGTH}}})", re.ASCII
)


def new_key(kind: SecretKind) -> str:
    """A new secret of `kind`: `live` and `test` are customers' keys, `admin` is a token of the admin REST."""
    body = f"pen_{kind}_" + "".join(secrets.choice(ALPHABET) for _ in range(RANDOM_LENGTH))
    return body + checksum(body)


def checksum(body: str) -> str:
    """Six base62 characters of the CRC-32 of `body`, most significant first."""
    value = zlib.crc32(body.encode("ascii"))
    digits = []
    for _ in range(CHECKSUM_LENGTH):
        value, digit = divmod(value, 62)
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits))


def secret_kind(raw: str) -> SecretKind | None:
    """The kind of a well-formed secret whose checksum agrees; None for anything else. No I/O."""
    shape = _SHAPE.fullmatch(raw)
    if shape is None or checksum(shape[1]) != shape[2]:
        return None
    kind = raw.split("_", 2)[1]
    return "live" if kind == "live" else "test" if kind == "test" else "admin"


def parse_key(raw: str) -> bool:
    """Whether `raw` has the format and the checksum of a customer's API key. No I/O."""
    return secret_kind(raw) in ("live", "test")


def hash_key(raw: str, pepper: bytes) -> bytes:
    """The 32 bytes stored of a key or token: HMAC-SHA256 under the pepper.

    `raw` may be any text. The timing of a look-up by hash reveals nothing: without the pepper, an attacker cannot
    choose a key by its hash.
    """
    return hmac.digest(pepper, raw.encode("utf-8", "surrogatepass"), "sha256")


def cache_salt(tenant_id: UUID, pepper: bytes) -> str:
    """The prefix-cache salt of a tenant: 32 bytes of HMAC in URL-safe base64, stable while the pepper is.

    vLLM 0.32 answers 400 to a salt that contains `/`.
    """
    digest = hmac.digest(pepper, b"cache-salt:" + tenant_id.bytes, "sha256")
    return base64.urlsafe_b64encode(digest).decode("ascii")
