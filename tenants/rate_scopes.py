"""Encodes limits as arguments of rates.lua: once per key, because they are most of each call."""

from hashlib import sha1
from pathlib import Path
from uuid import UUID

import msgspec

from core.redis_protocol import bulk
from tenants.principal import Limits, Principal

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
COMMON_PARTS = 3 + 8 + 18
"""Bulk strings before the operation: EVALSHA, digest and number of keys (3), keys (8), values of the scopes (18)."""
Args = list[str | int]

SOURCE = (Path(__file__).parent / "rates.lua").read_text()
SHA = sha1(SOURCE.encode(), usedforsecurity=False).hexdigest()


class Scopes(msgspec.Struct, frozen=True):
    """The three scopes of a key as the script takes them."""

    encoded: bytes
    """EVALSHA with keys and scopes as `COMMON_PARTS` RESP bulk strings, without the header of the array."""
    ids: tuple[UUID, UUID, UUID]
    limits: tuple[Limits, Limits, Limits]

    @property
    def limits_concurrency(self) -> bool:
        """Whether any scope limits concurrency."""
        return any(limits.concurrency is not None for limits in self.limits)

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
    limits = (principal.key_limits, principal.project_limits, principal.tenant_limits)
    if not any(_values(each) != _NONE for each in limits):
        return None
    ids = (principal.key_id, principal.project_id, principal.tenant_id)
    tag = f"penstock:rate:{{{principal.tenant_id}}}"
    keys = [f"{tag}:epoch", f"{tag}:day"]
    args: Args = []
    for id_, each in zip(ids, limits, strict=True):
        keys += [f"{tag}:levels:{id_}", f"{tag}:leases:{id_}"]
        args += [str(id_), *_values(each)]
    return Scopes(bulk("EVALSHA", SHA, len(keys), *keys, *args), ids, limits)


def command(encoded: bytes, *args: str | int) -> bytes:
    """A whole EVALSHA command: `encoded` of a `Scopes`, then the operation and its arguments."""
    return b"*%d\r\n%b%b" % (COMMON_PARTS + len(args), encoded, bulk(*args))


_NONE = [-1] * 5


def _values(limits: Limits) -> list[int]:
    given = (
        limits.requests_per_min,
        limits.input_tokens_per_min,
        limits.output_tokens_per_min,
        limits.concurrency,
        limits.tokens_per_day,
    )
    return [-1 if value is None else value for value in given]
