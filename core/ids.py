"""Identifiers: time-ordered UUIDs for rows and requests, short random names for processes."""

import os
import secrets
import time
import uuid

_VERSION_7 = 0x7 << 76
_VARIANT_RFC = 0b10 << 62


def uuid7(unix_ms: int | None = None) -> uuid.UUID:
    """A UUIDv7 (RFC 9562 §5.7): 48 bits of Unix milliseconds, then 74 random bits.

    It identifies requests, so the partition of a usage row follows from its id. `unix_ms` defaults to the system clock.
    """
    ms = time.time_ns() // 1_000_000 if unix_ms is None else unix_ms
    random_bits = int.from_bytes(os.urandom(10), "big")
    rand_a = (random_bits >> 62) & 0xFFF
    rand_b = random_bits & ((1 << 62) - 1)
    return uuid.UUID(int=(ms & ((1 << 48) - 1)) << 80 | _VERSION_7 | rand_a << 64 | _VARIANT_RFC | rand_b)


def uuid7_unix_ms(value: uuid.UUID) -> int:
    """The Unix time in milliseconds that a UUIDv7 carries."""
    return value.int >> 80


def incarnation(role: str) -> str:
    """A unique name for one run of one process, such as `api-4f1c9a2b`."""
    return f"{role}-{secrets.token_hex(4)}"


_DERIVED = uuid.UUID("8a5fb4a6-35a0-5b0c-9c55-6f0e4f1d7b21")


def derived_uuid(*parts: object) -> uuid.UUID:
    """A UUIDv5 (RFC 9562 §5.5) that is the same for the same parts.

    It is the source id of a booking that an external object causes: with `derived_uuid("stripe", "pi_123")` a payment
    that is applied twice is booked once.
    """
    return uuid.uuid5(_DERIVED, "\x1f".join(map(str, parts)))
