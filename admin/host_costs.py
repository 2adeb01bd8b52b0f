"""What hosts from providers cost, as their providers bill them, and the part for which no agent accounts."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor
from admin.transactions import now_of, read
from billing.economics.host_bills import silent_costs
from billing.usage.query import bucket_start
from core.db import Database
from core.money import pico_to_usd
from tenants.roles import PLATFORM_ROLES
from workers.providers import store
from workers.providers.costs import host_cost_pico
from workers.providers.intents import Intent


class CostView(msgspec.Struct, frozen=True):
    """What the hosts of a kind cost in a period."""

    provider: str
    kind: str
    hosts: int
    cost_usd: str
    no_agent_usd: str
    """The part for which no heartbeat accounts."""


async def host_costs(database: Database, actor: Actor, *, start: datetime, end: datetime) -> list[CostView]:
    """What hosts cost in [start, end), whole UTC hours, by provider and kind, as their providers bill them.

    Raises PermissionDenied.
    """
    async with read(database, actor, PLATFORM_ROLES) as connection:
        now = await now_of(connection)
        intents = await store.read_billed(connection, start, end)
        silent = await silent_costs(connection, [one.name for one in intents], start, end)
    kinds: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for one in intents:
        amounts = (host_cost_pico(one, start, min(end, now)), silent.get(one.name, 0))
        kinds.setdefault((one.provider, one.kind), []).append(amounts)
    return [
        CostView(
            provider,
            kind,
            len(rows),
            pico_to_usd(sum(whole for whole, _ in rows)),
            pico_to_usd(sum(part for _, part in rows)),
        )
        for (provider, kind), rows in sorted(kinds.items())
    ]


async def silent_until(
    connection: AsyncConnection, intents: Sequence[Intent], now: datetime
) -> dict[str, int]:
    """Picodollars of the hosts from their creation until `now` for which no agent accounts, by name."""
    created = [one.created_at for one in intents if one.billed and one.created_at is not None]
    if not created:
        return {}
    until = bucket_start(now, "hour") + timedelta(hours=1)
    return await silent_costs(
        connection, [one.name for one in intents], bucket_start(min(created), "hour"), until
    )
