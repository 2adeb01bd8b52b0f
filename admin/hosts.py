"""Hosts from providers: what is desired, what there is and costs, every call, and notices that one is taken back."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor, require
from admin.audit import record
from admin.host_costs import silent_until
from admin.image_rollouts import check_image, require_no_rollout
from admin.scaling import scaled_model
from admin.transactions import now_of, read, write
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound
from core.money import pico_to_usd
from tenants.names import clean_reason
from tenants.roles import PLATFORM_ADMIN, PLATFORM_ROLES
from workers.acting.contract_store import read_contracts
from workers.added_models import read_catalog
from workers.catalog import load_catalog
from workers.host_credentials import HostCredential, credential_of, joining_state, read_credentials
from workers.host_fit import check_fit, shared_on
from workers.host_models import is_shared, parse_models
from workers.providers import digitalocean, local, static, store
from workers.providers.costs import host_cost_pico
from workers.providers.images import is_outdated
from workers.providers.intents import Intent, IntentState, Overtaken
from workers.providers.interface import MAX_GROUP, DesiredHosts, HostGroup
from workers.scaling import NO_LIMITS, read_limits
from workers.wire import SIMULATED_HOST

PROVIDERS = ("digitalocean", "local")
"""Providers that create hosts."""
MAX_TEXT = 100
MAX_HOSTS = 1_024
MAX_HOLD = timedelta(days=31)
"""How long a person's decision may hold that expires."""
RECLAIM_WITHIN = timedelta(days=7)
"""How far ahead a notice may be."""
MAX_ROWS = 1_000

_FACTS = text("SELECT host_id, address, agent_version FROM hosts")
_EVENTS = text(
    """
    SELECT e.at, e.provider, i.name AS host, e.call, e.outcome, e.status, e.detail, e.provider_id, e.usd_pico_per_hour
    FROM host_events e LEFT JOIN host_intents i USING (intent_id)
    WHERE (CAST(:name AS text) IS NULL OR i.name = :name) AND (:reads OR e.call IN ('create', 'destroy', 'replace'))
    ORDER BY e.event_id DESC LIMIT :limit
    """
)


class DesiredView(msgspec.Struct, frozen=True):
    """How many hosts of a group there should be, and are."""

    provider: str
    region: str
    kind: str
    model: str
    desired: int
    running: int
    coming: int
    """Wanted and not running yet."""
    owner: str = "plan"
    """Who decides: `person`, until `expires_at` where there is one, or the autoscaler's `plan`."""
    expires_at: datetime | None = None
    image: str = ""
    """From which its hosts are made; empty = the provider's settings say."""
    outdated: int = 0
    """Hosts that were made from another image, and are replaced."""
    surge: bool = True
    """Whether a new host comes before an old one is given up."""


class HostView(msgspec.Struct, frozen=True):
    """A host that exists, or existed; its cost is exact, as its provider bills it."""

    name: str
    provider: str
    kind: str
    region: str
    model: str
    status: str
    wanted: bool
    why: str
    created_at: datetime | None
    joined_at: datetime | None
    ended_at: datetime | None
    reclaim_at: datetime | None
    usd_per_hour: str | None
    cost_usd: str
    no_agent_usd: str
    """The part of the cost for which no heartbeat of its agent accounts."""
    address: str = ""
    """Where its agent says that engines are reached."""
    agent_version: str = ""
    joining: str = ""
    """`own secret`, `invited`, `revoked`, or empty: it reports by the internal token, or not at all."""
    image: str = ""
    """From which it was made; empty = not known, or it has none."""
    silent_since: datetime | None = None
    """Last heartbeat of a host that joined and has fallen silent; None for others."""
    contract_id: UUID | None = None
    """The contract that covers it now; None = none does."""


class IntentView(msgspec.Struct, frozen=True):
    """An intent, with what is known of its calls."""

    name: str
    provider: str
    kind: str
    region: str
    model: str
    state: str
    wanted: bool
    why: str
    requested_at: datetime
    called_at: datetime | None
    calls: int
    failures: int
    next_at: datetime | None
    provider_id: str | None
    missing_since: datetime | None
    end_recorded: bool


class EventView(msgspec.Struct, frozen=True):
    """A call of a provider."""

    at: datetime
    provider: str
    host: str | None
    call: str
    outcome: str
    status: int
    detail: str
    provider_id: str | None
    usd_per_hour: str | None


async def list_hosts(database: Database, actor: Actor, *, ended: bool = False) -> list[HostView]:
    """Hosts that exist, the newest first, those that joined by themselves included; with `ended` all of the past, too.

    Of those that joined, a silent one is listed until its secret is revoked. At most MAX_ROWS of providers. Raises
    PermissionDenied.
    """
    async with read(database, actor, PLATFORM_ROLES) as connection:
        now = await now_of(connection)
        intents = await store.read_intents(connection, ended=ended, limit=MAX_ROWS)
        without_agent = await silent_until(connection, intents, now)
        facts = {row.host_id: row for row in await connection.execute(_FACTS)}
        credentials = await read_credentials(connection)
        silent = await static.read_silent(connection)
        contracts = (await read_contracts(connection)).assigned
    known = [
        _host(one, now, without_agent) for one in intents if one.billed or one.state is IntentState.EXISTS
    ]
    joined = await static.StaticHosts(database).list_hosts()
    known += [_static(host.name, host.kind, host.region, host.created_at, None) for host in joined.hosts]
    known += [
        _static(one.host_id, one.host_kind, one.region, one.first_seen, one.last_seen) for one in silent
    ]
    return [
        msgspec.structs.replace(
            _with_facts(view, facts, credentials, now),
            contract_id=found.contract_id if (found := contracts.get(view.name)) else None,
        )
        for view in known
    ]


async def list_intents(database: Database, actor: Actor, *, ended: bool = False) -> list[IntentView]:
    """Intents, the newest first: those that have not ended, or all. At most MAX_ROWS. Raises PermissionDenied."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return [_intent(one) for one in await store.read_intents(connection, ended=ended, limit=MAX_ROWS)]


async def list_events(
    database: Database, actor: Actor, *, name: str | None = None, reads: bool = False, limit: int = 100
) -> list[EventView]:
    """Calls of providers, the newest first: of one host or of all; with `reads` those that only look, too.

    Raises InvalidRequest for a limit that is not 1 to MAX_ROWS, PermissionDenied.
    """
    if not 1 <= limit <= MAX_ROWS:
        raise InvalidRequest(f"limit is {limit}, must be 1 to {MAX_ROWS}", param="limit")
    bound = {"name": name, "reads": reads or name is not None, "limit": limit}
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return [
            EventView(
                **{key: row[key] for key in EventView.__struct_fields__ if key != "usd_per_hour"},
                usd_per_hour=_usd(row["usd_pico_per_hour"]),
            )
            for row in (await connection.execute(_EVENTS, bound)).mappings()
        ]


async def list_desired(database: Database, actor: Actor) -> list[DesiredView]:
    """How many hosts of each group there should be, beside those that there are. Raises PermissionDenied."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return await _desired_views(connection)


async def set_desired(
    database: Database,
    actor: Actor,
    *,
    provider: str,
    region: str,
    kind: str,
    count: int,
    model: str = "",
    hold_for: timedelta | None = None,
    reason: str,
) -> DesiredView:
    """Set how many hosts of a group there should be. The next pass creates or destroys what differs.

    The autoscaler's plan leaves the group alone for `hold_for` of at most MAX_HOLD, or until `release_desired`. Raises
    InvalidRequest for a provider that creates no hosts, an empty or long text, a count or a time out of range, or a
    kind of the catalog on which the model does not run; NotFound and Conflict for a model that is not served here.
    """
    require(actor, PLATFORM_ADMIN)
    why = clean_reason(reason)
    require_provider(provider)
    for param, value in (("region", region), ("kind", kind)):
        if not 1 <= len(value) <= MAX_TEXT:
            raise InvalidRequest(f"{param} needs 1 to {MAX_TEXT} characters", param=param)
    if len(model) > MAX_GROUP:
        raise InvalidRequest(f"model has at most {MAX_GROUP} characters", param="model")
    if not 0 <= count <= MAX_HOSTS:
        raise InvalidRequest(f"count is {count}, must be 0 to {MAX_HOSTS}", param="count")
    if hold_for is not None and not timedelta() < hold_for <= MAX_HOLD:
        raise InvalidRequest(f"it is held for more than 0 and at most {MAX_HOLD.days} days", param="for")
    group = HostGroup(provider, region, kind, model)
    async with write(database, actor) as connection:
        if count and model:
            await _check_model(connection, group)
        now = await now_of(connection)
        until = None if hold_for is None else now + hold_for
        desired = DesiredHosts(group, count, "person", until)
        return await _change_desired(connection, actor, "hosts.set_desired", desired, why)


async def _check_model(connection: AsyncConnection, group: HostGroup) -> None:
    """Refuse hosts on which their model could never be served. Those of `local` are this machine, whatever the kind."""
    if is_shared(group.model):
        await _check_shared(connection, group)
        return
    model = await scaled_model(connection, group.model)
    if group.provider != local.NAME and group.kind in (catalog := load_catalog()).hosts:
        limits = (await read_limits(connection)).get(group.model, NO_LIMITS)
        check_fit(catalog, model, group.kind, limits.profile, "kind")


async def _check_shared(connection: AsyncConnection, group: HostGroup) -> None:
    """The same for hosts that several models share."""
    for placed in parse_models(group.model):
        await scaled_model(connection, placed.name)
    if group.kind in load_catalog().hosts:
        shared_on(await read_catalog(connection), group.model, group.kind)


async def release_desired(
    database: Database, actor: Actor, *, provider: str, region: str, kind: str, model: str = "", reason: str
) -> DesiredView:
    """Leave a group of hosts to the autoscaler's plan, as it is. Raises NotFound when no person decides on it."""
    require(actor, PLATFORM_ADMIN)
    why = clean_reason(reason)
    group = HostGroup(provider, region, kind, model)
    async with write(database, actor) as connection:
        found = [row for row in await store.read_desired(connection) if row.group == group]
        if not found or found[0].owner != "person":
            raise NotFound("no person decides on these hosts; `penstock hosts desired` shows who does")
        desired = DesiredHosts(group, found[0].count, "plan")
        return await _change_desired(connection, actor, "hosts.release_desired", desired, why)


async def set_image(
    database: Database,
    actor: Actor,
    *,
    provider: str,
    region: str,
    kind: str,
    image: str,
    model: str = "",
    surge: bool = True,
    reason: str,
) -> DesiredView:
    """Set the image from which a group's hosts are made. Hosts of another one are replaced, one at a time.

    With `surge` the new host comes first, which needs room for it. An empty `image` leaves new hosts to the provider's
    settings and replaces none. Raises InvalidRequest for a provider without images or a text that is no image,
    NotFound for a group of which no hosts are desired, Conflict while a rollout changes their image.
    """
    require(actor, PLATFORM_ADMIN)
    why = clean_reason(reason)
    if provider != digitalocean.NAME:
        raise InvalidRequest(
            f"hosts of {provider[:MAX_TEXT]!r} are made from no image; those of {digitalocean.NAME} are",
            param="provider",
        )
    check_image(image)
    group = HostGroup(provider, region, kind, model)
    async with write(database, actor) as connection:
        await require_no_rollout(connection, group)
        before = _one(await _desired_views(connection), group)
        if not await store.set_image(connection, group, image, surge=surge):
            raise NotFound("no hosts of this group are desired; `penstock hosts desired` shows the groups")
        after = _one(await _desired_views(connection), group)
        await _record_group(connection, actor, "hosts.set_image", group, why, before, after)
    return after


async def _change_desired(
    connection: AsyncConnection, actor: Actor, action: str, desired: DesiredHosts, why: str
) -> DesiredView:
    """Store what is desired of a group, with the audit row."""
    group = desired.group
    before = _one(await _desired_views(connection), group)
    await store.set_desired(connection, desired)
    after = _one(await _desired_views(connection), group)
    await _record_group(connection, actor, action, group, why, before, after)
    return after


async def _record_group(
    connection: AsyncConnection,
    actor: Actor,
    action: str,
    group: HostGroup,
    why: str,
    before: DesiredView,
    after: DesiredView,
) -> None:
    """Write the audit row of a change of a group."""
    await record(
        connection,
        actor,
        action,
        tenant_id=None,
        object_kind="hosts",
        object_id=f"{group.provider}/{group.region}/{group.kind}/{group.model}",
        reason=why,
        before=before,
        after=after,
    )


def require_provider(provider: str) -> None:
    """Raise InvalidRequest unless it is a provider that creates hosts."""
    if provider not in PROVIDERS:
        raise InvalidRequest(
            f"{provider[:MAX_TEXT]!r} creates no hosts; these do: {', '.join(PROVIDERS)}", param="provider"
        )


async def note_reclaim(
    database: Database, actor: Actor, *, name: str, at: datetime | None, reason: str
) -> HostView:
    """Write down that the provider takes a host back at `at`; None = the notice was wrong.

    A replacement is created at once, and the host is destroyed at that instant, or before where it is not needed.
    Raises NotFound, InvalidRequest for an instant without a zone, of the past or more than RECLAIM_WITHIN ahead,
    Conflict for a host that has ended, is not wanted or was changed by a pass at the same time.
    """
    require(actor, PLATFORM_ADMIN)
    why = clean_reason(reason)
    if at is not None and at.tzinfo is None:
        raise InvalidRequest(f"{at.isoformat()} has no time zone; write it as {at.isoformat()}Z", param="at")
    async with write(database, actor) as connection:
        found = await store.read_intents(connection, ended=True, limit=1, name=name)
        if not found:
            raise NotFound(
                f"there is no host {name[:MAX_TEXT]!r}; `penstock hosts list` shows them", param="name"
            )
        intent = found[0]
        if intent.state is IntentState.ENDED or not intent.wanted:
            state = "has ended" if intent.state is IntentState.ENDED else "is being destroyed"
            raise Conflict(f"{name} {state}: {intent.why}", param="name")
        now = await now_of(connection)
        if at is not None and not now < at <= now + RECLAIM_WITHIN:
            raise InvalidRequest(
                f"{at.isoformat()} must be after {now.isoformat(timespec='seconds')} and at most "
                f"{RECLAIM_WITHIN.days} days ahead",
                param="at",
            )
        changed = msgspec.structs.replace(intent, reclaim_at=at)
        try:
            await store.write_intent(connection, intent, changed)
        except Overtaken:
            raise Conflict(f"a pass has just changed {name}; try again", param="name") from None
        silent = await silent_until(connection, [intent], now)
        before, after = _host(intent, now, silent), _host(changed, now, silent)
        await record(
            connection,
            actor,
            "hosts.note_reclaim",
            tenant_id=None,
            object_kind="host",
            object_id=name,
            reason=why,
            before=before,
            after=after,
        )
    return after


def _static(
    name: str, kind: str, region: str, joined_at: datetime | None, silent_since: datetime | None
) -> HostView:
    """A host that joined by itself, which no provider bills."""
    return HostView(
        name=name,
        provider=static.NAME,
        kind=kind,
        region=region,
        model="",
        status="running" if silent_since is None else "silent",
        wanted=True,
        why="",
        created_at=None,
        joined_at=joined_at,
        ended_at=None,
        reclaim_at=None,
        usd_per_hour=None,
        cost_usd="0.00",
        no_agent_usd="0.00",
        silent_since=silent_since,
    )


def _with_facts(
    view: HostView, facts: Mapping[str, Any], credentials: Mapping[str, HostCredential], now: datetime
) -> HostView:
    """The view with what the host's agent has registered. One with simulated engines calls its host `sim-NAME`."""
    fact = facts.get(view.name) or facts.get(f"{SIMULATED_HOST}{view.name}")
    credential = credential_of(credentials, view.name)
    return msgspec.structs.replace(
        view,
        address=fact.address if fact is not None else "",
        agent_version=fact.agent_version if fact is not None else "",
        joining="" if credential is None else joining_state(credential, now),
    )


async def _desired_views(connection: AsyncConnection) -> list[DesiredView]:
    desired = {row.group: row for row in await store.read_desired(connection)}
    intents = await store.read_intents(connection, ended=False, limit=MAX_ROWS)
    held: dict[HostGroup, list[Intent]] = {group: [] for group in desired}
    for intent in intents:
        if intent.wanted:
            held.setdefault(intent.group, []).append(intent)
    return [
        _desired(desired.get(group, DesiredHosts(group, 0, "plan")), rows) for group, rows in held.items()
    ]


def _desired(row: DesiredHosts, intents: Sequence[Intent]) -> DesiredView:
    running = sum(one.status == "running" for one in intents)
    fields = msgspec.structs.asdict(row.group)
    return DesiredView(
        **fields,
        desired=row.count,
        running=running,
        coming=len(intents) - running,
        owner=row.owner,
        expires_at=row.expires_at,
        image=row.image,
        outdated=sum(is_outdated(one, row) for one in intents),
        surge=row.surge,
    )


def _one(views: Sequence[DesiredView], group: HostGroup) -> DesiredView:
    wanted = (group.provider, group.region, group.kind, group.model)
    found = [view for view in views if (view.provider, view.region, view.kind, view.model) == wanted]
    return found[0] if found else _desired(DesiredHosts(group, 0, "plan"), [])


def _host(intent: Intent, now: datetime, without_agent: Mapping[str, int]) -> HostView:
    return HostView(
        name=intent.name,
        provider=intent.provider,
        kind=intent.kind,
        region=intent.region,
        model=intent.model,
        status="ended" if intent.state is IntentState.ENDED else intent.status,
        wanted=intent.wanted,
        why=intent.why,
        created_at=intent.created_at,
        joined_at=intent.joined_at,
        ended_at=intent.ended_at,
        reclaim_at=intent.reclaim_at,
        usd_per_hour=_usd(intent.usd_pico_per_hour),
        cost_usd=pico_to_usd(host_cost_pico(intent, None, now)),
        no_agent_usd=pico_to_usd(without_agent.get(intent.name, 0)),
        image=intent.image,
    )


def _intent(intent: Intent) -> IntentView:
    values = {name: getattr(intent, name) for name in IntentView.__struct_fields__}
    return IntentView(**{**values, "state": intent.state.value})


def _usd(pico: int | None) -> str | None:
    return None if pico is None else pico_to_usd(int(pico))
