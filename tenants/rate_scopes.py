"""Encodes limits as arguments of rates.lua: once per key, because they are most of each call."""

from hashlib import sha1
from pathlib import Path
from struct import Struct
from uuid import UUID

import msgspec

from core.redis_protocol import bulk
from tenants.principal import NO_LIMITS, Limits, Principal
from tenants.rate_headers import RateHeaders

SCOPES = ("key", "project", "tenant")
"""Scopes in the order of the script's keys and arguments."""
KINDS = {
    "r": "requests_per_min",
    "i": "input_tokens_per_min",
    "o": "output_tokens_per_min",
    "c": "concurrency",
    "d": "tokens_per_day",
}
"""The script's letter for a limit -> the field of Limits."""
Args = list[str | int]

SOURCE = (Path(__file__).parent / "rates.lua").read_text()
SHA = sha1(SOURCE.encode(), usedforsecurity=False).hexdigest()


_SCOPE = Struct("<B36s5d")
_LEVELS = Struct("<4d")
_RESERVE = Struct("<3d")
_CORRECTION = Struct("<5d")


class Scopes(msgspec.Struct, frozen=True):
    """The scopes of a key as the script takes them: those that have a limit."""

    encoded: bytes
    """EVALSHA, keys and packed scopes as RESP bulk strings, without the header of the array."""
    parts: int
    """Number of these bulk strings."""
    ids: tuple[UUID, UUID, UUID]
    limits: tuple[Limits, Limits, Limits]
    concurrent: bool
    """Whether any scope limits concurrency."""
    request_limits: tuple[tuple[int, int, UUID, int], ...]
    """Scopes with requests per minute: place among the scopes passed, place in SCOPES, id, limit."""
    headers: RateHeaders
    """Formats the levels of the scopes passed."""
    acquire: bytes
    """The command `acquire` up to its arguments."""
    settle: bytes
    """The command `settle` up to its arguments."""

    @property
    def daily_ids(self) -> list[UUID]:
        """Ids of the scopes with a limit per day."""
        return [
            id_
            for id_, limits in zip(self.ids, self.limits, strict=True)
            if limits.tokens_per_day is not None
        ]


def scopes_of(principal: Principal) -> Scopes | None:
    """The scopes of `principal`; None when none of them has a limit, which saves the call to Redis."""
    ids = (principal.key_id, principal.project_id, principal.tenant_id)
    limits = (principal.key_limits, principal.project_limits, principal.tenant_limits)
    passed = [index for index, each in enumerate(limits) if each != NO_LIMITS]
    if not passed:
        return None
    tag = f"penstock:rate:{{{principal.tenant_id}}}"
    keys = [f"{tag}:epoch", f"{tag}:day"]
    packed = b""
    for index in passed:
        keys += [f"{tag}:buckets:{ids[index]}", f"{tag}:leases:{ids[index]}"]
        packed += pack_scope(index + 1, str(ids[index]), limits[index])
    encoded = bulk("EVALSHA", SHA, len(keys), *keys, packed)
    parts = 3 + len(keys) + 1
    return Scopes(
        encoded=encoded,
        parts=parts,
        ids=ids,
        limits=limits,
        concurrent=any(each.concurrency is not None for each in limits),
        request_limits=tuple(
            (place, index, ids[index], limit)
            for place, index in enumerate(passed)
            if (limit := limits[index].requests_per_min) is not None
        ),
        headers=RateHeaders([limits[index] for index in passed]),
        acquire=b"*%d\r\n%b%b" % (parts + 3, encoded, bulk("acquire")),
        settle=b"*%d\r\n%b%b" % (parts + 4, encoded, bulk("settle")),
    )


def pack_scope(number: int, id_: str, limits: Limits) -> bytes:
    """A scope as rates.lua unpacks it (SCOPE); `id_` has 36 characters."""
    values = (
        limits.requests_per_min,
        limits.input_tokens_per_min,
        limits.output_tokens_per_min,
        limits.concurrency,
        limits.tokens_per_day,
    )
    return _SCOPE.pack(number, id_.encode(), *(-1 if value is None else value for value in values))


def pack_levels(at_us: float, requests: float, input_tokens: float, output_tokens: float) -> bytes:
    """Bucket levels as rates.lua stores them (LEVELS)."""
    return _LEVELS.pack(at_us, requests, input_tokens, output_tokens)


def unpack_levels(stored: bytes) -> tuple[float, float, float, float]:
    """Bucket levels as rates.lua stores them: microseconds since 1970, then requests, input and output tokens."""
    at_us, requests, input_tokens, output_tokens = _LEVELS.unpack(stored)
    return at_us, requests, input_tokens, output_tokens


def command(scopes: Scopes, operation: str, *args: str | int) -> bytes:
    """A whole EVALSHA command that runs `operation`."""
    return b"*%d\r\n%b%b" % (scopes.parts + 1 + len(args), scopes.encoded, bulk(operation, *args))


def acquire_command(scopes: Scopes, lease: str, ttl_us: int, input_tokens: int, output_tokens: int) -> bytes:
    """The command that reserves one request with its estimated tokens, and a lease of `ttl_us` microseconds."""
    reserve = _RESERVE.pack(ttl_us, input_tokens, output_tokens)
    return b"%b$%d\r\n%b\r\n$24\r\n%b\r\n" % (scopes.acquire, len(lease), lease.encode(), reserve)


def settle_command(
    scopes: Scopes, epoch: bytes, lease: str, day: int, deltas: tuple[int, int, int], used: int
) -> bytes:
    """The command that corrects a reservation.

    `deltas`: what to add to the requests, input tokens and output tokens of the reservation. `used`: tokens in all,
    counted in place of `deltas` once `day` is over.
    """
    correction = _CORRECTION.pack(day, *deltas, used)
    return b"%b$%d\r\n%b\r\n$%d\r\n%b\r\n$40\r\n%b\r\n" % (
        scopes.settle, len(epoch), epoch, len(lease), lease.encode(), correction,
    )  # fmt: skip
