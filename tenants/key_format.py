"""The format of keys and tokens: `pen_<kind>_` and in base62 24 random characters, 8 of tag and 6 of checksum.

The checksum refuses a mistyped or truncated key without a look-up and lets secret scanners recognise keys; it is no
protection, since all can compute it. The tag is keyed by the pepper: a key that was made up has none, and is refused
without a look-up. Older keys have 32 random characters instead; tenants/untagged_keys.py has the list of them.

Only an HMAC-SHA256 with a pepper is stored: 142 random bits need no slow hash, and a stolen table is useless without
the pepper.
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
RANDOM_LENGTH = 24
"""Random characters: log2(62**24) = 142 bits."""
TAG_LENGTH = 8
"""Characters of the tag: log2(62**8) = 47 bits, so that a made-up key passes once in 2 * 10**14."""
CHECKSUM_LENGTH = 6
"""Characters of the CRC-32 in base62: 62**6 > 2**32."""

_SHAPE = re.compile(
    rf"(pen_(?:live|test|admin)_[0-9A-Za-z]{{{RANDOM_LENGTH + TAG_LENGTH}}})([0-9A-Za-z]{{{CHECKSUM_LENGTH}}})",
    re.ASCII,
)


def new_key(kind: SecretKind, pepper: bytes) -> str:
    """A new secret of `kind`: `live` and `test` are customers' keys, `admin` a token of the admin REST."""
    body = f"pen_{kind}_" + "".join(secrets.choice(ALPHABET) for _ in range(RANDOM_LENGTH))
    body += _tag(body, pepper)
    return body + checksum(body)


def checksum(body: str) -> str:
    """Six base62 characters of the CRC-32 of `body`, most significant first."""
    return _base62(zlib.crc32(body.encode("ascii")), CHECKSUM_LENGTH)


def has_tag(raw: str, pepper: bytes) -> bool:
    """Whether the well-formed secret `raw` carries the tag of this platform, so that it was made here. No I/O."""
    body = raw[: -TAG_LENGTH - CHECKSUM_LENGTH]
    return hmac.compare_digest(_tag(body, pepper), raw[len(body) : -CHECKSUM_LENGTH])


def _tag(body: str, pepper: bytes) -> str:
    digest = hmac.digest(pepper, b"key-tag:" + body.encode("ascii"), "sha256")
    return _base62(int.from_bytes(digest[:16], "big"), TAG_LENGTH)


def _base62(value: int, length: int) -> str:
    """The last `length` base62 digits of a number, most significant first."""
    digits = []
    for _ in range(length):
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
