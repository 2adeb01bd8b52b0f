"""How much of its limits an organisation uses now, read from the counters that admission writes.

Names and units of the counters are those of tenants/rates.lua: bucket levels that drain at the limit per minute,
a sorted set of leases by expiry, and a hash of day counters. This module only reads.
"""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec
from redis.asyncio import Redis

from tenants.principal import Limits

MINUTE_US = 60_000_000
_LEVELS = {"requests_per_min": "r", "input_tokens_per_min": "i", "output_tokens_per_min": "o"}


class InUse(msgspec.Struct, frozen=True):
    """What one scope uses of each of its limits; None = the scope has no such limit."""

    requests_per_min: int | None = None
    input_tokens_per_min: int | None = None
    output_tokens_per_min: int | None = None
    concurrency: int | None = None
    tokens_per_day: int | None = None


async def limits_in_use(
    redis: Redis, tenant_id: UUID, scopes: Sequence[tuple[str, UUID, Limits]], now: datetime
) -> dict[UUID, InUse]:
    """Present use by scope id. `scopes` holds (kind, id, limits) of scopes of `tenant_id`."""
    tag = f"penstock:rate:{{{tenant_id}}}"
    now_us = int(now.timestamp() * 1_000_000)
    async with redis.pipeline(transaction=False) as pipe:
        pipe.hgetall(f"{tag}:day")
        for _, scope_id, _ in scopes:
            pipe.hmget(f"{tag}:levels:{scope_id}", ["t", "r", "i", "o"])
            pipe.zcount(f"{tag}:leases:{scope_id}", now_us, "+inf")
        day, *answers = await pipe.execute()
    counts = _today(day, int(now.timestamp()) // 86_400)
    found = {}
    for index, (_, scope_id, limits) in enumerate(scopes):
        stored, leases = answers[2 * index], answers[2 * index + 1]
        levels = {
            name: _level(getattr(limits, name), stored, at, now_us)
            for at, name in enumerate(_LEVELS, start=1)
        }
        found[scope_id] = InUse(
            **levels,
            concurrency=None if limits.concurrency is None else int(leases),
            tokens_per_day=None if limits.tokens_per_day is None else counts.get(str(scope_id), 0),
        )
    return found


def _today(day: dict[bytes, bytes], today: int) -> dict[str, int]:
    counts = {_text(name): _text(value) for name, value in day.items()}
    if counts.get("day") != str(today):
        return {}
    return {name: max(0, int(value)) for name, value in counts.items() if name != "day"}


def _level(limit: int | None, stored: list[bytes | None], at: int, now_us: int) -> int | None:
    """The bucket's level after draining up to `now_us`, in whole units."""
    if limit is None:
        return None
    since, level = stored[0], stored[at]
    if since is None or level is None:
        return 0
    drained = float(level) - max(0, now_us - int(since)) * limit / MINUTE_US
    return max(0, round(drained))


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
