"""Turns the autoscaler's plan, which the scheduler stores, into desired hosts of providers (docs/adr/0054)."""

import logging
from collections.abc import Iterable
from datetime import datetime, timedelta

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.economics.host_bills import covered_parts
from billing.usage.query import bucket_start
from core.db import Database
from core.money import usd_to_pico
from core.settings import Settings
from workers.acting.contract_store import any_since, read_contracts
from workers.acting.decide import PLAN_MAX_AGE, Decision, Money, Situation, decide_hosts
from workers.acting.places import parse_places
from workers.acting.plan import Mode
from workers.acting.store import ActingRules, PlanRead, add_acts, read_plan, read_rules
from workers.catalog import load_catalog
from workers.providers import local
from workers.providers.ceilings import Ceilings
from workers.providers.costs import host_cost_pico
from workers.providers.intents import Retire, noted
from workers.providers.interface import DesiredHosts
from workers.providers.store import (
    read_billed,
    read_desired,
    read_recent,
    set_desired,
    try_lock,
    write_intent,
)
from workers.scaling import read_effective_limits, read_host_prices

log = logging.getLogger(__name__)


async def act_on_plan(database: Database, settings: Settings, providers: frozenset[str]) -> int:
    """Write what the plan asks for in one transaction; returns the number of groups and hosts that changed.

    `providers` are those that are set up. Nothing changes for a plan that is older than PLAN_MAX_AGE or of a scheduler
    that has lost its lease, nor while a pass over a provider runs. Raises Overtaken, with nothing written, when a
    person has changed a host or a group meanwhile.
    """
    places = parse_places(settings.host_places)
    async with database.system() as connection:
        for provider in sorted(providers):
            if not await try_lock(connection, provider):
                return 0
        read = await read_plan(connection)
        if read is None or not read.current or read.now - read.at > PLAN_MAX_AGE:
            return 0
        await _end_drains(connection, read)
        rules = await read_rules(connection)
        if rules.mode is Mode.OFF:
            return 0
        catalog = load_catalog()
        own = frozenset(kind for kind, host in catalog.hosts.items() if host.own)
        limits = await read_effective_limits(connection)
        decision = decide_hosts(
            Situation(
                now=read.now,
                plan=read.plan,
                desired=await read_desired(connection),
                intents=await read_recent(connection),
                places=places,
                providers=providers,
                own=own,
                limits=limits,
                money=await _money(connection, settings, rules, providers, read.now, own),
                contracts=await read_contracts(connection),
                mode=Mode.DRY_RUN if settings.hosts_dry_run else rules.mode,
            )
        )
        await _write(connection, decision, read)
    if decision.desired or decision.retired:
        log.info(
            "the autoscaler's plan: %d groups of hosts changed, %d hosts given up",
            len(decision.desired),
            len(decision.retired),
        )
    return len(decision.desired) + len(decision.retired)


async def _end_drains(connection: AsyncConnection, read: PlanRead) -> None:
    """Let hosts be destroyed that are not wanted any more, and on which no engine runs: whatever the switch says."""
    if not read.plan.emptied:
        return
    for intent in await read_recent(connection):
        if not intent.wanted and intent.drain_until is not None and intent.name in read.plan.emptied:
            await write_intent(connection, intent, msgspec.structs.replace(intent, drain_until=None))


async def _write(connection: AsyncConnection, decision: Decision, read: PlanRead) -> None:
    for intent, why in decision.retired:
        await write_intent(
            connection, intent, noted(intent, Retire(intent.intent_id, why, drained=True), read.now)
        )
    for group, count in decision.desired.items():
        await set_desired(connection, DesiredHosts(group, count, "plan"), unless_persons=True)
    await add_acts(connection, decision.acts)


async def _money(
    connection: AsyncConnection,
    settings: Settings,
    rules: ActingRules,
    providers: Iterable[str],
    now: datetime,
    own: frozenset[str],
) -> Money:
    """Ceilings, prices, and what the hosts of each model have cost since the UTC month began."""
    known = await known_prices(connection)
    return Money(
        Ceilings(settings.hosts_max, usd_to_pico(settings.hosts_max_usd_per_hour)),
        {
            (provider, kind): 0 if provider == local.NAME else price
            for provider in providers
            for kind, price in known.items()
        },
        await _spent(connection, now, own),
        rules.budget_usd_pico_per_month,
    )


async def _spent(connection: AsyncConnection, now: datetime, own: frozenset[str]) -> dict[str, int]:
    """Picodollars by model since the UTC month began, without what contracts cover."""
    month = bucket_start(now, "month")
    covered = {}
    if await any_since(connection, month):
        covered = await covered_parts(connection, month, bucket_start(now, "hour") + timedelta(hours=1))
    spent: dict[str, int] = {}
    for one in await read_billed(connection, month, now):
        if one.kind not in own:
            cost = host_cost_pico(one, month, now) - covered.get(one.name, 0)
            spent[one.model] = spent.get(one.model, 0) + cost
    return spent


async def known_prices(connection: AsyncConnection) -> dict[str, int]:
    """Picodollars per hour by kind: the books' prices, and for other kinds those of the catalog."""
    catalog = {
        kind: usd_to_pico(host.price.usd_per_hour)
        for kind, host in load_catalog().hosts.items()
        if host.price is not None
    }
    return catalog | await read_host_prices(connection)
