"""Whether the autoscaler's plan is acted on, what it has done, and what persons decide in its place."""

from datetime import timedelta

import msgspec
from sqlalchemy import delete
from sqlalchemy.dialects.postgresql import insert

from admin.actor import Actor, require
from admin.audit import record
from admin.model_settings import record_change
from admin.scaling import parse_budget, parse_mode, scaled_model
from admin.transactions import now_of, read, write
from core.db import Database
from core.errors import InvalidRequest, NotFound
from core.money import pico_to_usd
from tenants.names import clean_reason
from tenants.roles import PLATFORM_ADMIN, PLATFORM_ROLES
from workers.acting import store
from workers.acting.store import ActingRules, TimelineRow
from workers.scaling import MAX_REPLICAS, ReplicaHold, read_holds
from workers.tables import replica_holds

MAX_ROWS = 1_000
MAX_HOLD = timedelta(days=31)


class ActingView(msgspec.Struct, frozen=True):
    """The platform's switch."""

    acting: str
    """off | dry-run | on. The weaker of this and a model's own holds for the model."""
    budget_usd_per_month: str | None
    """Most dollars in a UTC month for all hosts that no contract covers; None = no limit."""


async def get_acting(database: Database, actor: Actor) -> ActingView:
    """The platform's switch. Raises PermissionDenied."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return _view(await store.read_rules(connection))


async def set_acting(
    database: Database,
    actor: Actor,
    *,
    acting: str | None = None,
    budget_usd_per_month: str | None = None,
    reason: str,
) -> ActingView:
    """Set the platform's switch or its budget per month, `none` for no limit; what is not given stays as it is.

    Raises InvalidRequest when nothing is given or a value is none.
    """
    require(actor, PLATFORM_ADMIN)
    why = clean_reason(reason)
    if acting is None and budget_usd_per_month is None:
        raise InvalidRequest("give acting or budget_usd_per_month: there is nothing to change")
    async with write(database, actor) as connection:
        before = await store.read_rules(connection)
        budget = before.budget_usd_pico_per_month
        if budget_usd_per_month is not None:
            budget = parse_budget(budget_usd_per_month, "budget_usd_per_month")
        if budget is not None and budget < 0:
            raise InvalidRequest("budget_usd_per_month must not be negative", param="budget_usd_per_month")
        after = ActingRules(before.mode if acting is None else parse_mode(acting), budget)
        await store.write_rules(connection, after)
        await record(
            connection,
            actor,
            "pools.set_acting",
            tenant_id=None,
            object_kind="pools",
            object_id="acting",
            reason=why,
            before=_view(before),
            after=_view(after),
        )
    return _view(after)


async def timeline(
    database: Database, actor: Actor, *, model: str | None = None, limit: int = 100
) -> list[TimelineRow]:
    """What was done for the autoscaler's plan, would have been, or was refused, the newest first.

    Raises InvalidRequest for a limit that is not 1 to MAX_ROWS, PermissionDenied.
    """
    if not 1 <= limit <= MAX_ROWS:
        raise InvalidRequest(f"limit is {limit}, must be 1 to {MAX_ROWS}", param="limit")
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return await store.list_acts(connection, model=model, limit=limit)


async def list_holds(database: Database, actor: Actor) -> list[ReplicaHold]:
    """The holds of replicas that have not expired. Raises PermissionDenied."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return [hold for _, hold in sorted((await read_holds(connection)).items())]


async def hold_replicas(
    database: Database, actor: Actor, *, model: str, awake: int, hold_for: timedelta, reason: str
) -> ReplicaHold:
    """Keep `awake` replicas of a model awake, whatever the autoscaler needs, for a time of at most MAX_HOLD.

    Raises NotFound, Conflict for an alias or the model of an external engine, InvalidRequest.
    """
    require(actor, PLATFORM_ADMIN)
    why = clean_reason(reason)
    if not 0 <= awake <= MAX_REPLICAS:
        raise InvalidRequest(f"awake is {awake}, must be 0 to {MAX_REPLICAS}", param="awake")
    if not timedelta() < hold_for <= MAX_HOLD:
        raise InvalidRequest(f"a hold lasts more than 0 and at most {MAX_HOLD.days} days", param="for")
    async with write(database, actor) as connection:
        await scaled_model(connection, model)
        before = (await read_holds(connection)).get(model)
        now = await now_of(connection)
        after = ReplicaHold(model, awake, now + hold_for, why)
        values = msgspec.structs.asdict(after)
        await connection.execute(
            insert(replica_holds).values(values).on_conflict_do_update(index_elements=["model"], set_=values)
        )
        await record_change(connection, actor, model, "model.hold_replicas", before, after, why)
    return after


async def release_replicas(database: Database, actor: Actor, *, model: str, reason: str) -> ReplicaHold:
    """End a hold before its time; returns it. Raises NotFound when there is none."""
    require(actor, PLATFORM_ADMIN)
    why = clean_reason(reason)
    async with write(database, actor) as connection:
        before = (await read_holds(connection)).get(model)
        if before is None:
            raise NotFound(f"no replicas of {model!r} are held", param="model")
        await connection.execute(delete(replica_holds).where(replica_holds.c.model == model))
        await record_change(connection, actor, model, "model.release_replicas", before, None, why)
    return before


def _view(rules: ActingRules) -> ActingView:
    budget = rules.budget_usd_pico_per_month
    return ActingView(rules.mode.value, None if budget is None else pico_to_usd(budget))
