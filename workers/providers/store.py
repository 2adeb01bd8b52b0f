"""Intents, desired hosts and events in PostgreSQL. Each function that writes commits at once, with its own session."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import RowMapping, func, insert, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from core.db import Database
from workers.added_models import read_catalog
from workers.host_credentials import revoke
from workers.host_fit import profile_on, replicas_on
from workers.providers.images import next_image
from workers.providers.intents import Act, Add, Adopt, Create, Destroy, Intent, IntentState, Overtaken
from workers.providers.interface import (
    CallResult,
    DesiredHosts,
    EngineStart,
    HostGroup,
    ObservedHost,
    Outcome,
)
from workers.providers.ownership import Claim, Owner
from workers.providers.reconciler import Pace
from workers.providers.tables import desired_hosts, host_events, host_intents, host_providers
from workers.rollouts import read_rollouts

DRY_RUN = "dry_run"
"""In place of the outcome of a call that a dry run has not made."""
NOTICE_KEPT = timedelta(minutes=2)
"""How long a line for people is shown after a pass last said it."""

_COLUMNS = tuple(column.name for column in host_intents.columns)
# An agent with simulated engines calls its host `sim-NAME`.
_INTENTS = (
    "SELECT i.*, (SELECT min(h.first_seen) FROM hosts h WHERE h.host_id IN (i.name, 'sim-' || i.name)) AS joined_at, "
    "(SELECT min(a.stored_at) FROM host_acceptances a WHERE a.host_id = i.name AND a.verdict = 'refused' "
    "AND NOT EXISTS (SELECT FROM host_acceptances b WHERE b.host_id = i.name AND b.verdict <> 'refused' "
    "AND b.stored_at > a.stored_at)) AS refused_since, (SELECT max(a.stored_at) FROM host_acceptances a "
    "WHERE a.host_id = i.name AND a.verdict <> 'refused') AS fit_at, (SELECT min(a.stored_at) FROM host_acceptances a "
    "WHERE a.host_id = i.name AND a.verdict <> 'refused') AS first_fit_at, "
    "EXISTS (SELECT FROM model_seconds m WHERE m.host_id IN (i.name, 'sim-' || i.name)) AS ran, "
    # Silent to a scheduler that serves: one that has just begun, or was away, has stored no heartbeat meanwhile.
    "(SELECT greatest(max(h.last_seen), l.serving_since) FROM hosts h, scheduler_lease l "
    "WHERE h.host_id IN (i.name, 'sim-' || i.name) AND l.renewed_at > clock_timestamp() - interval '10 seconds' "
    "GROUP BY l.serving_since HAVING max(h.last_seen) < clock_timestamp() - interval '2 minutes') AS silent_since "
    "FROM host_intents i"
)
_LOAD = text(
    f"{_INTENTS} WHERE i.provider = :provider AND (i.state <> 'ended' "
    "OR i.ended_at > clock_timestamp() - interval '1 day' OR i.provider_id = ANY(CAST(:ids AS text[])) "
    "OR i.name = ANY(CAST(:names AS text[]))) ORDER BY i.requested_at, i.intent_id"
)
_ALL = text(
    f"{_INTENTS} WHERE (:ended OR i.state <> 'ended') AND (CAST(:name AS text) IS NULL OR i.name = :name) "
    "ORDER BY i.requested_at DESC, i.intent_id DESC LIMIT :limit"
)
_PROFILE = text("SELECT profile FROM model_scaling WHERE model = :model")
_SET_IMAGE = text(
    """
    UPDATE desired_hosts SET image = :image, surge = :surge, image_at = clock_timestamp(),
        image_before = CASE WHEN image = :image THEN image_before ELSE image END
    WHERE (provider, region, kind, model) = (:provider, :region, :kind, :model)
    """
)
_GIVE_UP_IMAGE = text(
    """
    UPDATE desired_hosts SET image = image_before, image_before = '', image_at = clock_timestamp()
    WHERE (provider, region, kind, model, image) = (:provider, :region, :kind, :model, :image)
    """
)
_KINDS = text(
    "SELECT kind FROM desired_hosts WHERE provider = :provider AND count > 0 "
    "UNION SELECT kind FROM host_intents WHERE provider = :provider AND state <> 'ended'"
)
_RECENT = text(
    f"{_INTENTS} WHERE i.state <> 'ended' OR i.ended_at > clock_timestamp() - interval '1 day' "
    "ORDER BY i.requested_at, i.intent_id"
)
_OPEN = text(
    f"{_INTENTS} WHERE i.provider = :provider AND i.state <> 'ended' ORDER BY i.requested_at, i.intent_id"
)
_BILLED = text(
    f"{_INTENTS} WHERE i.billed AND i.created_at < :end AND (i.ended_at IS NULL OR i.ended_at > :start) "
    "ORDER BY i.requested_at, i.intent_id"
)
_TRY_LOCK = text("SELECT pg_try_advisory_xact_lock(hashtext('penstock_hosts'), hashtext(:provider))")
_LOCK = text("SELECT pg_advisory_xact_lock(hashtext('penstock_hosts'), hashtext(:provider))")
_DATABASE_ID = text(
    "SELECT system_identifier || '-' || (SELECT oid FROM pg_database WHERE datname = current_database()) "
    "FROM pg_control_system()"
)
_PACE = text(
    """
    INSERT INTO host_providers (provider, not_before, whole_at) VALUES (:provider, :not_before, :whole_at)
    ON CONFLICT (provider) DO UPDATE SET
        not_before = GREATEST(host_providers.not_before, excluded.not_before),
        whole_at = GREATEST(host_providers.whole_at, excluded.whole_at)
    """
)
_NOTICE = text(
    """
    WITH said AS (SELECT FROM host_providers WHERE provider = :provider AND notice = :line
                  AND noticed_at > clock_timestamp() - CAST(:kept AS interval))
    INSERT INTO host_providers (provider, notice, noticed_at) VALUES (:provider, :line, clock_timestamp())
    ON CONFLICT (provider) DO UPDATE SET notice = excluded.notice, noticed_at = excluded.noticed_at
    RETURNING NOT EXISTS (SELECT FROM said)
    """
)
_NOTICES = text(
    "SELECT provider, notice FROM host_providers WHERE noticed_at > clock_timestamp() - CAST(:kept AS interval) "
    "ORDER BY provider"
)
_EVENT_ONCE = text(
    """
    INSERT INTO host_events (provider, intent_id, call, outcome, status, detail)
    SELECT :provider, :intent_id, :call, :outcome, 0, :detail WHERE NOT EXISTS (
        SELECT FROM host_events WHERE at > clock_timestamp() - interval '1 hour' AND outcome = :outcome
        AND (provider, call, detail) = (:provider, :call, :detail)
        AND intent_id IS NOT DISTINCT FROM CAST(:intent_id AS uuid))
    """
)
_PRUNE = text(
    "DELETE FROM host_events WHERE event_id IN (SELECT event_id FROM host_events "
    "WHERE intent_id IS NULL AND at < now() - interval '7 days' LIMIT :batch)"
)


class DatabaseIntents:
    """IntentStore in PostgreSQL, by its clock."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def now(self) -> datetime:
        """The instant, by PostgreSQL's clock."""
        async with self._database.read() as connection:
            now: datetime = (await connection.execute(text("SELECT clock_timestamp()"))).scalar_one()
        return now

    async def desired(self, provider: str) -> Sequence[DesiredHosts]:
        """How many hosts there should be."""
        async with self._database.read() as connection:
            return await read_desired(connection, provider)

    async def kinds(self, provider: str) -> Collection[str]:
        """The kinds of hosts that are desired or may exist."""
        async with self._database.read() as connection:
            return set(await connection.scalars(_KINDS, {"provider": provider}))

    async def load(self, provider: str, shown: Sequence[ObservedHost]) -> Sequence[Intent]:
        """All intents that have not ended, those that ended within a day, and those of the hosts that are shown."""
        bound = {
            "provider": provider,
            "ids": [host.provider_id for host in shown],
            "names": [host.name for host in shown],
        }
        async with self._database.read() as connection:
            return [_intent(row) for row in (await connection.execute(_LOAD, bound)).mappings()]

    async def add(self, intent: Intent) -> None:
        """Write a new intent, unless one has its name or host already."""
        async with self._database.system() as connection:
            await connection.execute(upsert(host_intents).values(_values(intent)).on_conflict_do_nothing())

    async def save(self, before: Intent, after: Intent, result: CallResult | None = None) -> Intent:
        """Write what has changed of an intent, and the call's event; raises Overtaken if it is not as it was read.

        The secret and the token of a host end with it.
        """
        async with self._database.system() as connection:
            stored = await write_intent(connection, before, after)
            if after.state is IntentState.ENDED and before.state is not IntentState.ENDED:
                await revoke(connection, after.name)
            if result is not None:
                await connection.execute(insert(host_events).values(_event(after, result)))
        return stored

    async def reload(self, intent: Intent) -> Intent:
        """The intent as it is now."""
        async with self._database.read() as connection:
            return (await read_intents(connection, ended=True, limit=1, name=intent.name))[0]

    async def database_id(self) -> str:
        """Identity of the database, which a copy of its content in another place does not have."""
        async with self._database.read() as connection:
            return await database_id(connection)

    async def start(self, kind: str, model: str) -> EngineStart:
        """How a new host of a kind begins to serve a model; a chosen profile that does not fit there is left out."""
        async with self._database.read() as connection:
            chosen: str | None = await connection.scalar(_PROFILE, {"model": model})
            catalog = await read_catalog(connection)
        known = catalog.models.get(model)
        if known is None:
            return EngineStart()
        profile = profile_on(catalog, known, kind, chosen or "") or profile_on(catalog, known, kind)
        if profile is None:
            return EngineStart()
        named = profile.name if profile.name == chosen else ""
        return EngineStart(named, replicas_on(catalog, kind, profile))

    async def image(self, group: HostGroup) -> str:
        """The image of a group's next host; empty = the provider's settings say."""
        async with self._database.read() as connection:
            rows = [row for row in await read_desired(connection, group.provider) if row.group == group]
            intents = await read_open(connection, group.provider) if rows and rows[0].rollout else []
        return next_image(rows[0], [one for one in intents if one.group == group]) if rows else ""

    async def give_up_image(self, group: HostGroup, image: str) -> bool:
        """Put the image of before in place of a group's `image`; False when it has another one by now."""
        async with self._database.system() as connection:
            bound = {**msgspec.structs.asdict(group), "image": image}
            return (await connection.execute(_GIVE_UP_IMAGE, bound)).rowcount == 1

    async def claim(self, provider: str) -> Claim:
        """Whose the provider's hosts were."""
        async with self._database.read() as connection:
            return await read_claim(connection, provider)

    async def set_claim(self, provider: str, owner: Owner) -> None:
        """Write down whose they are."""
        async with self._database.system() as connection:
            await write_claim(connection, provider, msgspec.structs.asdict(owner))

    async def notice(self, provider: str, line: str) -> bool:
        """Keep a line for people; whether it was not there within NOTICE_KEPT."""
        bound = {"provider": provider, "line": line, "kept": NOTICE_KEPT}
        async with self._database.system() as connection:
            return bool((await connection.execute(_NOTICE, bound)).scalar_one())

    async def record_refused(self, provider: str, reasons: Sequence[str]) -> None:
        """Write the events of creates that were not called, at most once an hour for the same reason."""
        row = {"provider": provider, "intent_id": None, "call": "create", "outcome": Outcome.REFUSED.value}
        async with self._database.system() as connection:
            for reason in reasons:
                await connection.execute(_EVENT_ONCE, {**row, "detail": reason})

    async def record(self, provider: str, results: Sequence[CallResult]) -> None:
        """Write the events of calls that concern no single intent."""
        if not results:
            return
        rows = [_bare_event(provider, result) for result in results]
        async with self._database.system() as connection:
            await connection.execute(insert(host_events), rows)

    async def record_dry(self, provider: str, acts: Sequence[Act], intents: Sequence[Intent]) -> None:
        """Write what a dry run would have done, at most once an hour for the same thing."""
        names = {intent.intent_id: intent.name for intent in intents}
        async with self._database.system() as connection:
            for act in acts:
                row: dict[str, Any] = {"provider": provider, "intent_id": None, "outcome": DRY_RUN}
                match act:
                    case Add(group=group):
                        row |= {
                            "call": "create",
                            "detail": f"{group.kind} in {group.region} {group.model}".strip(),
                        }
                    case Adopt(host=host):
                        row |= {"call": "destroy", "detail": f"{host.name}: {act.why}"}
                    case Create(intent_id=intent_id) | Destroy(intent_id=intent_id):
                        call = "create" if isinstance(act, Create) else "destroy"
                        row |= {"intent_id": intent_id, "call": call, "detail": names[intent_id]}
                    case _:
                        continue
                await connection.execute(_EVENT_ONCE, row)

    async def pace(self, provider: str) -> Pace:
        """What the last pass left."""
        async with self._database.read() as connection:
            found = await connection.execute(
                select(host_providers).where(host_providers.c.provider == provider)
            )
            row = found.mappings().one_or_none()
        return Pace() if row is None else Pace(row["not_before"], row["whole_at"])

    async def set_pace(self, provider: str, pace: Pace) -> None:
        """Keep it for the next pass; later instants of another one stay."""
        bound = {"provider": provider, "not_before": pace.not_before, "whole_at": pace.whole_at}
        async with self._database.system() as connection:
            await connection.execute(_PACE, bound)


async def try_lock(connection: AsyncConnection, provider: str) -> bool:
    """Take the lock of a provider's passes until the end of the transaction; False when another has it."""
    return bool(await connection.scalar(_TRY_LOCK, {"provider": provider}))


async def lock(connection: AsyncConnection, provider: str) -> None:
    """Wait for that lock."""
    await connection.execute(_LOCK, {"provider": provider})


async def read_desired(connection: AsyncConnection, provider: str | None = None) -> list[DesiredHosts]:
    """How many hosts of each group there should be, of one provider or of all."""
    query = select(desired_hosts).order_by(*desired_hosts.primary_key.columns)
    if provider is not None:
        query = query.where(desired_hosts.c.provider == provider)
    rolled = {each.group: each for each in await read_rollouts(connection, active=True) if each.image}
    found = []
    for row in (await connection.execute(query)).mappings():
        group = HostGroup(row["provider"], row["region"], row["kind"], row["model"])
        rollout = rolled.get(group)
        found.append(
            DesiredHosts(
                group,
                row["count"],
                row["owner"],
                row["expires_at"],
                row["image"],
                row["image_at"],
                row["surge"],
                None if rollout is None else rollout.of_image(row["count"]),
            )
        )
    return found


async def set_desired(
    connection: AsyncConnection, desired: DesiredHosts, *, unless_persons: bool = False
) -> None:
    """Set how many hosts of a group there should be, and who says so.

    Raises Overtaken, if `unless_persons` is set, when a person decides on the group now.
    """
    group = msgspec.structs.asdict(desired.group)
    said = {"count": desired.count, "owner": desired.owner, "expires_at": desired.expires_at}
    yields = (desired_hosts.c.owner == "plan") | (desired_hosts.c.expires_at <= func.clock_timestamp())
    statement = (
        upsert(desired_hosts)
        .values(**group, **said)
        .on_conflict_do_update(
            index_elements=list(desired_hosts.primary_key.columns),
            set_=said,
            where=yields if unless_persons else None,
        )
    )
    if (await connection.execute(statement)).rowcount != 1:
        raise Overtaken("/".join(group.values()))


async def set_image(connection: AsyncConnection, group: HostGroup, image: str, *, surge: bool) -> bool:
    """Set the image of a group's hosts; False when there is no such group."""
    bound = {**msgspec.structs.asdict(group), "image": image, "surge": surge}
    return (await connection.execute(_SET_IMAGE, bound)).rowcount == 1


async def read_intents(
    connection: AsyncConnection, *, ended: bool, limit: int, name: str | None = None
) -> list[Intent]:
    """Intents, the newest first: those that have not ended, or all; or those of one name."""
    bound = {"ended": ended or name is not None, "limit": limit, "name": name}
    return [_intent(row) for row in (await connection.execute(_ALL, bound)).mappings()]


async def read_open(connection: AsyncConnection, provider: str) -> list[Intent]:
    """A provider's intents that have not ended."""
    bound = {"provider": provider}
    return [_intent(row) for row in (await connection.execute(_OPEN, bound)).mappings()]


async def read_recent(connection: AsyncConnection) -> list[Intent]:
    """The intents of all providers that have not ended, and those that ended within a day."""
    return [_intent(row) for row in (await connection.execute(_RECENT)).mappings()]


async def read_billed(connection: AsyncConnection, start: datetime, end: datetime) -> list[Intent]:
    """The intents whose hosts existed at some time of [start, end)."""
    bound = {"start": start, "end": end}
    return [_intent(row) for row in (await connection.execute(_BILLED, bound)).mappings()]


async def write_intent(connection: AsyncConnection, before: Intent, after: Intent) -> Intent:
    """Write the columns that have changed; returns what is stored. Raises Overtaken if it is not as it was read."""
    old, new = _values(before), _values(after)
    changed = {name: value for name, value in new.items() if value != old[name]}
    if not changed:
        return before
    changed["version"] = before.version + 1
    row = update(host_intents).where(
        host_intents.c.intent_id == before.intent_id, host_intents.c.version == before.version
    )
    if (await connection.execute(row.values(changed))).rowcount != 1:
        raise Overtaken(before.name)
    return msgspec.structs.replace(after, version=before.version + 1)


async def read_claim(connection: AsyncConnection, provider: str) -> Claim:
    """Whose the provider's hosts are, as it is written down."""
    columns = [host_providers.c[name] for name in Claim.__struct_fields__]
    found = await connection.execute(select(*columns).where(host_providers.c.provider == provider))
    row = found.mappings().one_or_none()
    return (
        Claim() if row is None else Claim(**{name: value for name, value in row.items() if value is not None})
    )


async def write_claim(connection: AsyncConnection, provider: str, values: Mapping[str, Any]) -> None:
    """Write down whose the provider's hosts are."""
    row = upsert(host_providers).values(provider=provider, **values)
    await connection.execute(row.on_conflict_do_update(index_elements=["provider"], set_=dict(values)))


async def database_id(connection: AsyncConnection) -> str:
    """The cluster's number from initdb and the database's from its creation. Copies of their files keep both."""
    found: str = (await connection.execute(_DATABASE_ID)).scalar_one()
    return found


async def read_notices(connection: AsyncConnection) -> dict[str, str]:
    """The lines for people that passes said within NOTICE_KEPT, by provider."""
    rows = await connection.execute(_NOTICES, {"kept": NOTICE_KEPT})
    return {row.provider: row.notice for row in rows}


async def desire_none(connection: AsyncConnection, provider: str) -> None:
    """Desire no hosts of a provider: what was desired was another fleet's."""
    await connection.execute(
        update(desired_hosts).where(desired_hosts.c.provider == provider).values(count=0)
    )


async def prune_events(connection: AsyncConnection, batch: int) -> int:
    """Delete events of lists that are older than a week, at most `batch`; events of intents are kept."""
    return (await connection.execute(_PRUNE, {"batch": batch})).rowcount


def _values(intent: Intent) -> dict[str, Any]:
    return {name: getattr(intent, name) for name in _COLUMNS}


def _intent(row: RowMapping) -> Intent:
    values: Mapping[str, Any] = {
        name: row[name]
        for name in (*_COLUMNS, "joined_at", "fit_at", "first_fit_at", "refused_since", "ran", "silent_since")
    }
    price = row["usd_pico_per_hour"]
    return Intent(
        **{
            **values,
            "state": IntentState(row["state"]),
            "usd_pico_per_hour": None if price is None else int(price),
        }
    )


def _event(intent: Intent, result: CallResult) -> dict[str, Any]:
    return _bare_event(intent.provider, result) | {
        "intent_id": intent.intent_id,
        "provider_id": intent.provider_id,
        "usd_pico_per_hour": intent.usd_pico_per_hour,
    }


def _bare_event(provider: str, result: CallResult) -> dict[str, Any]:
    return {
        "provider": provider,
        "call": result.call,
        "outcome": result.outcome.value,
        "status": result.status,
        "detail": result.detail,
    }
