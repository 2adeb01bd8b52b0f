"""Intents, desired hosts and events in PostgreSQL. Each function that writes commits at once, with its own session."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import RowMapping, insert, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from core.db import Database
from workers.providers.intents import Act, Add, Adopt, Create, Destroy, Intent, IntentState
from workers.providers.interface import CallResult, DesiredHosts, HostGroup, ObservedHost
from workers.providers.reconciler import Pace
from workers.providers.tables import desired_hosts, host_events, host_intents, host_providers

DRY_RUN = "dry_run"
"""In place of the outcome of a call that a dry run has not made."""

_COLUMNS = tuple(column.name for column in host_intents.columns)
# An agent with simulated engines calls its host `sim-NAME`.
_INTENTS = (
    "SELECT i.*, (SELECT min(h.first_seen) FROM hosts h WHERE h.host_id IN (i.name, 'sim-' || i.name)) AS joined_at "
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
_BILLED = text(
    f"{_INTENTS} WHERE i.billed AND i.created_at < :end AND (i.ended_at IS NULL OR i.ended_at > :start) "
    "ORDER BY i.requested_at, i.intent_id"
)
_DRY_EVENT = text(
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
        """Write a new intent."""
        async with self._database.system() as connection:
            await connection.execute(insert(host_intents).values(_values(intent)))

    async def save(self, before: Intent, after: Intent, result: CallResult | None = None) -> None:
        """Write the columns that have changed, so that what a person changes meanwhile stays, and the call's event."""
        old, new = _values(before), _values(after)
        changed = {name: value for name, value in new.items() if value != old[name]}
        async with self._database.system() as connection:
            if changed:
                row = update(host_intents).where(host_intents.c.intent_id == after.intent_id)
                await connection.execute(row.values(changed))
            if result is not None:
                await connection.execute(insert(host_events).values(_event(after, result)))

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
                await connection.execute(_DRY_EVENT, row)

    async def pace(self, provider: str) -> Pace:
        """What the last pass left."""
        async with self._database.read() as connection:
            found = await connection.execute(
                select(host_providers).where(host_providers.c.provider == provider)
            )
            row = found.mappings().one_or_none()
        return Pace() if row is None else Pace(row["not_before"], row["whole_at"])

    async def set_pace(self, provider: str, pace: Pace) -> None:
        """Keep it for the next pass."""
        values = {"not_before": pace.not_before, "whole_at": pace.whole_at}
        statement = upsert(host_providers).values(provider=provider, **values)
        async with self._database.system() as connection:
            await connection.execute(
                statement.on_conflict_do_update(index_elements=["provider"], set_=values)
            )


async def read_desired(connection: AsyncConnection, provider: str | None = None) -> list[DesiredHosts]:
    """How many hosts of each group there should be, of one provider or of all."""
    query = select(desired_hosts).order_by(*desired_hosts.primary_key.columns)
    if provider is not None:
        query = query.where(desired_hosts.c.provider == provider)
    return [
        DesiredHosts(HostGroup(row["provider"], row["region"], row["kind"], row["model"]), row["count"])
        for row in (await connection.execute(query)).mappings()
    ]


async def set_desired(connection: AsyncConnection, desired: DesiredHosts) -> None:
    """Set how many hosts of a group there should be."""
    group = msgspec.structs.asdict(desired.group)
    statement = upsert(desired_hosts).values(**group, count=desired.count)
    await connection.execute(
        statement.on_conflict_do_update(
            index_elements=list(desired_hosts.primary_key.columns), set_={"count": desired.count}
        )
    )


async def read_intents(
    connection: AsyncConnection, *, ended: bool, limit: int, name: str | None = None
) -> list[Intent]:
    """Intents, the newest first: those that have not ended, or all; or those of one name."""
    bound = {"ended": ended or name is not None, "limit": limit, "name": name}
    return [_intent(row) for row in (await connection.execute(_ALL, bound)).mappings()]


async def read_billed(connection: AsyncConnection, start: datetime, end: datetime) -> list[Intent]:
    """The intents whose hosts existed at some time of [start, end)."""
    bound = {"start": start, "end": end}
    return [_intent(row) for row in (await connection.execute(_BILLED, bound)).mappings()]


async def note_reclaim(connection: AsyncConnection, intent: Intent, at: datetime | None) -> None:
    """Write down when the provider takes the host back; None = it does not."""
    row = update(host_intents).where(host_intents.c.intent_id == intent.intent_id)
    await connection.execute(row.values(reclaim_at=at))


async def prune_events(connection: AsyncConnection, batch: int) -> int:
    """Delete events of lists that are older than a week, at most `batch`; events of intents are kept."""
    return (await connection.execute(_PRUNE, {"batch": batch})).rowcount


def _values(intent: Intent) -> dict[str, Any]:
    return {name: getattr(intent, name) for name in _COLUMNS}


def _intent(row: RowMapping) -> Intent:
    values: Mapping[str, Any] = {name: row[name] for name in (*_COLUMNS, "joined_at")}
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
