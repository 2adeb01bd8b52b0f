"""Rollouts of new versions of a model's engines, or of an image of its hosts: begin, look, promote, abort.

The scheduler carries them out. docs/rollouts.md describes them.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor, require
from admin.image_rollouts import image_change
from admin.model_settings import record_change
from admin.models import lock_models
from admin.scaling import scaled_model
from admin.transactions import page_size, read, write
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound
from tenants.names import clean_reason
from tenants.roles import PLATFORM_ADMIN, PLATFORM_ROLES
from tenants.tables import tenants
from workers.catalog import ArgValue, CatalogModel
from workers.engine_spec import EngineSpec, profile_of
from workers.rollouts import (
    ENDED,
    ImageChange,
    Rollout,
    RolloutState,
    Strategy,
    VersionFigures,
    add_rollout,
    check_strategy,
    read_deployments,
    read_rollouts,
)
from workers.tables import rollouts

BASE_NAME = "base"
"""Name of the version that hosts and catalog say."""
ANSWER_BOUNDS = {"min_agreement": 0.25, "max_logprob_distance": 1.0}
"""Of a rollout whose answers are compared, where it gives no others."""
IMAGE_DEADLINES = {"progress_deadline_s": 7_200.0}
"""Of a rollout of an image, where it gives no other: a host takes that long to be made, checked and filled."""


class RolloutView(msgspec.Struct, frozen=True):
    """A rollout as admins see it."""

    rollout_id: UUID
    model: str
    state: str
    """canary, progressing, rolling_back, promoted or rolled_back."""
    reason: str
    """Why it is in this state."""
    old_version: str
    new_version: str
    old_spec: dict[str, Any]
    new_spec: dict[str, Any]
    """How each differs from what hosts and catalog say."""
    image: ImageChange | None
    """The image that is rolled out, and of which hosts; None = it is a version of the engines."""
    wanted: int | None
    """Replicas that were awake when it began; None = not known yet."""
    replicas: int
    updated: int
    """Replicas of the new version."""
    available: int
    """Replicas that serve."""
    old: VersionFigures | None
    new: VersionFigures | None
    """What requests saw of each version while both served."""
    strategy: Strategy
    started_at: datetime
    changed_at: datetime
    ended_at: datetime | None


async def list_rollouts(
    database: Database, actor: Actor, *, model: str | None = None, limit: int = 100
) -> list[RolloutView]:
    """Rollouts, the newest first: of one model or all. Raises PermissionDenied."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return [_view(each) for each in await read_rollouts(connection, model=model, limit=page_size(limit))]


async def last_rollout(database: Database, actor: Actor, *, model: str) -> RolloutView:
    """The newest rollout of a model. Raises NotFound when it never had one."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return _view(await _last(connection, model))


async def start_rollout(
    database: Database,
    actor: Actor,
    *,
    model: str,
    reason: str,
    profile: str | None = None,
    engine_version: str | None = None,
    revision: str | None = None,
    args: Mapping[str, ArgValue | None] | None = None,
    from_base: bool = False,
    same_answer: bool | None = None,
    strategy: Mapping[str, Any] | None = None,
    image: str | None = None,
    region: str | None = None,
    host_kind: str | None = None,
) -> RolloutView:
    """Begin to replace the engines of a model's replicas. What is not given stays as in the version promoted last.

    With `from_base` it stays as hosts and catalog say. In `args` None takes an argument away. `strategy` has fields of
    Strategy. `same_answer`: whether new engines must give the stored greedy answer; by default they must, unless
    profile or revision change. False means that any answer will do, where the strategy says nothing else.

    With `image` the model's hosts are replaced by those of another image, with engines of the same version; `region`
    and `host_kind` say which, where a model has several groups of hosts.

    Raises NotFound; Conflict for an alias, the model of an external engine, a model that is being rolled out, and a
    version or an image that it has; InvalidRequest for what no replica can run or is out of range.
    """
    require(actor, PLATFORM_ADMIN)
    why = clean_reason(reason)
    changes = {
        "profile": profile,
        "engine_version": engine_version,
        "revision": revision,
        "args": args or None,
    }
    _check_combination(
        image, {**changes, "from_base": from_base or None}, {"region": region, "host_kind": host_kind}
    )
    async with write(database, actor) as connection:
        await lock_models(connection)
        known = await scaled_model(connection, model)
        if active := await read_rollouts(connection, model=model, active=True):
            raise Conflict(
                f"{model!r} is being rolled out ({active[0].state}); wait until that has ended, or abort it",
                param="model",
            )
        before = (await read_deployments(connection)).get(model, EngineSpec())
        after = before if image is not None else _changed(known, before, changes, from_base=from_base)
        agrees = after.keeps_weights(before) if same_answer is None else same_answer
        usual = ({} if same_answer is False else ANSWER_BOUNDS) | (IMAGE_DEADLINES if image else {})
        chosen = _strategy({**usual, **(strategy or {}), "same_answer": agrees})
        await _check_tenants(connection, chosen.canary_tenants)
        change = None
        if image is not None:
            change = await image_change(connection, model, image, region, host_kind, chosen)
        view = _view(await add_rollout(connection, model, before, after, chosen, why, change))
        await record_change(connection, actor, model, "model.rollout_start", None, view, why)
    return view


def _check_combination(
    image: str | None, changes: Mapping[str, object], places: Mapping[str, object]
) -> None:
    """Raise InvalidRequest for an image beside another change, and for a choice of hosts without an image."""
    odd = [name for name, value in (places if image is None else changes).items() if value is not None]
    if odd and image is None:
        raise InvalidRequest(f"{odd[0]} chooses the hosts of an image, and no image was given", param=odd[0])
    if odd:
        raise InvalidRequest(
            f"a rollout of an image changes nothing else, and {odd[0]} was given; roll that out before or after",
            param=odd[0],
        )


def _changed(
    known: CatalogModel, before: EngineSpec, changes: Mapping[str, Any], *, from_base: bool
) -> EngineSpec:
    """The version with these changes. Raises InvalidRequest for one that no replica can run, Conflict for `before`."""
    kept = EngineSpec() if from_base else before
    given = {name: value for name, value in changes.items() if value is not None}
    after = msgspec.structs.replace(kept, **{**given, "args": {**kept.args, **given.get("args", {})}})
    profile_of(known, known.profile(after.profile), after)
    if after == before:
        raise Conflict(
            f"the replicas of {known.name!r} are to have this version already; give what is to change",
            param="model",
        )
    return after


async def promote_rollout(database: Database, actor: Actor, *, model: str, reason: str) -> RolloutView:
    """Let a canary go on: all other replicas get its version. Raises NotFound, and Conflict where it is none."""
    return await _decide(database, actor, model, reason, "model.rollout_promote", RolloutState.PROGRESSING)


async def abort_rollout(database: Database, actor: Actor, *, model: str, reason: str) -> RolloutView:
    """Bring all replicas back to the version of before. Raises NotFound, and Conflict where nothing can be aborted."""
    return await _decide(database, actor, model, reason, "model.rollout_abort", RolloutState.ROLLING_BACK)


async def _decide(
    database: Database, actor: Actor, model: str, reason: str, action: str, state: RolloutState
) -> RolloutView:
    require(actor, PLATFORM_ADMIN)
    why = clean_reason(reason)
    async with write(database, actor) as connection:
        await lock_models(connection)
        before = await _last(connection, model)
        if before.state in ENDED:
            raise Conflict(
                f"no rollout of {model!r} is under way; the last one was {before.state}", param="model"
            )
        if before.state is RolloutState.ROLLING_BACK or (
            state is RolloutState.PROGRESSING and before.state is not RolloutState.CANARY
        ):
            verb = "promoted" if state is RolloutState.PROGRESSING else "aborted"
            raise Conflict(
                f"the rollout of {model!r} is {before.state}, so it cannot be {verb}", param="model"
            )
        decided = await connection.execute(
            update(rollouts)
            .where(rollouts.c.rollout_id == before.rollout_id, rollouts.c.state == before.state.value)
            .values(state=state.value, reason=f"{actor.label}: {why}", changed_at=text("clock_timestamp()"))
        )
        if not decided.rowcount:  # the scheduler, which does not lock the models, was faster
            raise Conflict(
                f"the rollout of {model!r} is no longer {before.state}; look at it and decide again",
                param="model",
            )
        view = _view(await _last(connection, model))
        await record_change(connection, actor, model, action, _view(before), view, why)
    return view


async def _last(connection: AsyncConnection, model: str) -> Rollout:
    found = await read_rollouts(connection, model=model, limit=1)
    if not found:
        raise NotFound(
            f"{model!r} never had a rollout; `penstock models rollout start` begins one", param="model"
        )
    return found[0]


def _strategy(given: Mapping[str, Any]) -> Strategy:
    """The strategy of given fields. Raises InvalidRequest."""
    if unknown := sorted(given.keys() - set(Strategy.__struct_fields__)):
        raise InvalidRequest(f"a strategy has no {unknown[0]}", param="strategy")
    try:
        strategy = msgspec.convert(dict(given), Strategy)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the strategy is wrong: {error}", param="strategy") from None
    check_strategy(strategy)
    return strategy


async def _check_tenants(connection: AsyncConnection, ids: Sequence[str]) -> None:
    """Raise InvalidRequest for what is no organisation's id."""
    try:
        wanted = {UUID(each) for each in ids}
    except ValueError:
        raise InvalidRequest("canary_tenants must be ids of organisations", param="canary_tenants") from None
    known = (
        set(await connection.scalars(select(tenants.c.id).where(tenants.c.id.in_(wanted))))
        if wanted
        else set()
    )
    if missing := sorted(map(str, wanted - known)):
        raise InvalidRequest(f"there is no organisation {missing[0]}", param="canary_tenants")


def _view(rollout: Rollout) -> RolloutView:
    progress, (old_version, new_version) = rollout.progress, rollout.versions
    return RolloutView(
        rollout_id=rollout.rollout_id,
        model=rollout.model,
        state=rollout.state.value,
        reason=rollout.reason,
        old_version=old_version or BASE_NAME,
        new_version=new_version or BASE_NAME,
        old_spec=msgspec.to_builtins(rollout.before),
        new_spec=msgspec.to_builtins(rollout.after),
        image=rollout.image,
        wanted=progress.wanted if progress.wanted >= 0 else None,
        replicas=progress.replicas,
        updated=progress.updated,
        available=progress.available,
        old=progress.old,
        new=progress.new,
        strategy=rollout.strategy,
        started_at=rollout.started_at,
        changed_at=rollout.changed_at,
        ended_at=rollout.ended_at,
    )
