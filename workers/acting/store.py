"""The stored plan, the platform's switch and the acts in PostgreSQL."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from workers.acting.plan import Mode, PoolAct, StoredPlan
from workers.acting.tables import acting_rules, pool_acts

_WRITE = text(
    """
    INSERT INTO autoscaler_plan (term, at, plan)
    VALUES (:term, clock_timestamp() - make_interval(secs => :age_s), CAST(:plan AS jsonb))
    ON CONFLICT (one) DO UPDATE SET term = excluded.term, at = excluded.at, plan = excluded.plan
    WHERE autoscaler_plan.term <= excluded.term
    """
)
_READ = text(
    """
    SELECT p.plan::text AS plan, p.at, p.term = l.term AS current, clock_timestamp() AS now
    FROM autoscaler_plan p, scheduler_lease l FOR UPDATE OF p
    """
)
_ADD = text(
    """
    INSERT INTO pool_acts (model, target, act, reason, mode, result, detail)
    SELECT :model, :target, :act, :reason, :mode, :result, :detail
    WHERE :result IN ('done', 'failed') OR NOT EXISTS (
        SELECT FROM pool_acts WHERE at > clock_timestamp() - interval '1 hour'
        AND (model, target, act, mode, result) = (:model, :target, :act, :mode, :result))
    """
)
# Acts on shared hosts name all their models, which may have GPUs in brackets.
_OF_MODEL = text(r":of_model = ANY (string_to_array(regexp_replace(model, '\[[^]]*\]', '', 'g'), ','))")
MAX_TEXT = 1_000


class PlanRead(msgspec.Struct, frozen=True):
    """The stored plan, with what tells whether it still holds."""

    plan: StoredPlan
    at: datetime
    current: bool
    """Whether it is of the scheduler that has the lease."""
    now: datetime


class ActingRules(msgspec.Struct, frozen=True):
    """The platform's switch, and the most picodollars that hosts may cost in a UTC month; None = no limit."""

    mode: Mode = Mode.OFF
    budget_usd_pico_per_month: int | None = None


class TimelineRow(msgspec.Struct, frozen=True):
    """An act as it is stored."""

    at: datetime
    model: str
    target: str
    act: str
    reason: str
    mode: str
    result: str
    detail: str


async def write_plan(connection: AsyncConnection, term: int, plan: StoredPlan, age_s: float) -> None:
    """Store a plan that is `age_s` seconds old, unless a scheduler of a higher term has stored one."""
    bound = {"term": term, "age_s": age_s, "plan": msgspec.json.encode(plan).decode()}
    await connection.execute(_WRITE, bound)


async def read_plan(connection: AsyncConnection) -> PlanRead | None:
    """The stored plan, which is not replaced until the end of the transaction; None before the first."""
    row = (await connection.execute(_READ)).one_or_none()
    if row is None:
        return None
    return PlanRead(msgspec.json.decode(row.plan, type=StoredPlan), row.at, row.current, row.now)


async def read_now(connection: AsyncConnection) -> datetime:
    """The instant, by PostgreSQL's clock."""
    now: datetime = (await connection.execute(text("SELECT clock_timestamp()"))).scalar_one()
    return now


async def read_rules(connection: AsyncConnection) -> ActingRules:
    """The platform's switch; off while it was never set."""
    row = (await connection.execute(select(acting_rules))).one_or_none()
    if row is None:
        return ActingRules()
    budget = row.budget_usd_pico_per_month
    return ActingRules(Mode(row.mode), None if budget is None else int(budget))


async def write_rules(connection: AsyncConnection, rules: ActingRules) -> None:
    """Set the platform's switch."""
    values: dict[str, Any] = msgspec.to_builtins(rules)
    await connection.execute(
        insert(acting_rules)
        .values(one=True, **values)
        .on_conflict_do_update(index_elements=["one"], set_=values)
    )


async def add_acts(connection: AsyncConnection, acts: Sequence[PoolAct]) -> None:
    """Write acts down; one that was refused or only looked at is written once an hour."""
    for act in acts:
        values: dict[str, Any] = msgspec.to_builtins(act)
        bound = {name: value.replace("\0", "")[:MAX_TEXT] for name, value in values.items()}
        await connection.execute(_ADD, bound)


async def list_acts(connection: AsyncConnection, *, model: str | None, limit: int) -> list[TimelineRow]:
    """Acts, the newest first: for one model or all."""
    columns = [pool_acts.c[name] for name in TimelineRow.__struct_fields__]
    query = select(*columns).order_by(pool_acts.c.act_id.desc()).limit(limit)
    if model is not None:
        query = query.where(_OF_MODEL).params(of_model=model)
    return [TimelineRow(**row) for row in (await connection.execute(query)).mappings()]
