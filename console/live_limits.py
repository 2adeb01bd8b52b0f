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
from tenants.rate_scopes import unpack_levels

MINUTE_US = 60_000_000
_RATES = ("requests_per_min", "input_tokens_per_min", "output_tokens_per_min")
"""Limits with a bucket, in the order of their levels."""


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
            pipe.get(f"{tag}:buckets:{scope_id}")
            pipe.zcount(f"{tag}:leases:{scope_id}", now_us, "+inf")
        day, *answers = await pipe.execute()
    counts = _today(day, int(now.timestamp()) // 86_400)
    found = {}
    for index, (_, scope_id, limits) in enumerate(scopes):
        stored, leases = answers[2 * index], answers[2 * index + 1]
        since, *stored_levels = unpack_levels(stored) if stored else (0.0, 0.0, 0.0, 0.0)
        levels = {
            name: _level(getattr(limits, name), level, now_us - since)
            for name, level in zip(_RATES, stored_levels, strict=True)
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


def _level(limit: int | None, level: float, elapsed_us: float) -> int | None:
    """A bucket's level after it has drained for `elapsed_us`, in whole units."""
    if limit is None:
        return None
    return max(0, round(level - max(0, elapsed_us) * limit / MINUTE_US))


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
