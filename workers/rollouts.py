"""Rollouts of new versions of a model's engines: rows of PostgreSQL that admins begin and the scheduler drives.

docs/rollouts.md describes them, scheduler/core/rollout.py decides, and scheduler/core/image_rollout.py where the image
of the hosts is rolled out.
"""

import math
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal
from uuid import UUID

import msgspec
from sqlalchemy import Row, null, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from core.errors import InvalidRequest
from workers.engine_spec import EngineSpec
from workers.providers.interface import HostGroup, ImageRollout
from workers.tables import model_deployments, rollouts
from workers.wire import ANY_DISTANCE

MAX_CANARY_TENANTS = 1_000
ALL_HOSTS = 1_024
"""Hosts that a group has at most."""


class ImageChange(msgspec.Struct, frozen=True):
    """The image that a rollout changes, of one group of the model's hosts."""

    provider: str
    region: str
    kind: str
    before: str
    """Image of the group's new hosts before; empty = the provider's settings say."""
    after: str


class RolloutState(StrEnum):
    """How far a rollout is."""

    CANARY = "canary"
    """A share of the traffic uses the new version, until it is promoted or aborted."""
    PROGRESSING = "progressing"
    """Replicas are replaced."""
    ROLLING_BACK = "rolling_back"
    PROMOTED = "promoted"
    """All replicas have the new version."""
    ROLLED_BACK = "rolled_back"
    """All replicas have the version of before."""


ENDED = frozenset({RolloutState.PROMOTED, RolloutState.ROLLED_BACK})


class Strategy(msgspec.Struct, frozen=True):
    """How a version is rolled out, and what stops it. Seconds, and shares from 0 to 1."""

    max_surge: int = 1
    """Replicas beyond the usual number that may be awake, where resting ones have free GPUs."""
    max_unavailable: int = 1
    """Replicas that may be missing from the usual number at a time."""
    canary_percent: int = 0
    """Percent of the organisations whose requests use the new version first; 0 = none but those of the list."""
    canary_tenants: tuple[str, ...] = ()
    """Ids of organisations that use the new version first."""
    canary_by: Literal["organisation", "request"] = "organisation"
    """What `canary_percent` is of: organisations, of which each stays on its version, or single requests."""
    promote_after_s: float = 0.0
    """After which a canary without regression goes on by itself; 0 = an admin promotes it."""
    canary_deadline_s: float = 86_400.0
    """After which a canary that was not promoted is rolled back."""
    min_ready_s: float = 10.0
    """For which a new replica must serve before it counts as available."""
    bake_s: float = 60.0
    """For which the last serving replica of the old version waits, until a new one has served so long, or the new
    version `min_requests` requests."""
    progress_deadline_s: float = 1_800.0
    """Without progress after which the rollout is rolled back."""
    drain_s: float = 600.0
    """That running requests get. Where some are left, the replica goes on serving, and its turn comes again."""
    min_requests: int = 50
    """Requests of each version without which times are not compared."""
    max_error_increase: float = 0.02
    """By which the share of failed requests may exceed that of the old version."""
    max_ttft_ratio: float = 1.5
    """Median seconds to the first token, as a multiple of the old version's."""
    max_tpot_ratio: float = 1.3
    """Median seconds per output token, likewise."""
    max_length_ratio: float = 2.0
    """Mean tokens of an answer, likewise; and the old version's as a multiple of the new one's."""
    max_acceptance_drop: float = 0.1
    """By which the share of accepted draft tokens may be below that of the old version."""
    same_answer: bool = True
    """Whether a new engine must give the stored greedy answer before it serves."""
    min_agreement: float | None = None
    """Least share of the tokens of the stored greedy answers that a new engine must give before it serves; None = any,
    as for rollouts that began before there was this bound."""
    max_logprob_distance: float | None = None
    """Largest mean difference of their log-probabilities, in nats; None = any."""

    @property
    def has_canary(self) -> bool:
        """Whether some traffic uses the new version first."""
        return self.canary_percent > 0 or bool(self.canary_tenants)


_RANGES: dict[str, tuple[float, float]] = {
    "max_surge": (0, 1_024),
    "max_unavailable": (0, 1_024),
    "canary_percent": (0, 100),
    "promote_after_s": (0, 31 * 86_400),
    "canary_deadline_s": (60, 31 * 86_400),
    "min_ready_s": (0, 86_400),
    "bake_s": (0, 86_400),
    "progress_deadline_s": (10, 86_400),
    "drain_s": (1, 3_600),
    "min_requests": (1, 100_000),
    "max_error_increase": (0, 1),
    "max_ttft_ratio": (1, 100),
    "max_tpot_ratio": (1, 100),
    "max_length_ratio": (1, 100),
    "max_acceptance_drop": (0, 1),
    "min_agreement": (0, 1),
    "max_logprob_distance": (0, ANY_DISTANCE),
}


def check_strategy(strategy: Strategy) -> None:
    """Raise InvalidRequest for the first figure that is out of range."""
    for name, (least, most) in _RANGES.items():
        value = getattr(strategy, name)
        if value is not None and not least <= value <= most:
            raise InvalidRequest(f"{name} is {value}, must be {least:g} to {most:g}", param=name)
    if strategy.max_surge == strategy.max_unavailable == 0:
        raise InvalidRequest(
            "max_surge and max_unavailable are both 0, so no replica could be replaced",
            param="max_unavailable",
        )
    waits_s = max(strategy.min_ready_s, strategy.bake_s)
    if strategy.progress_deadline_s <= waits_s:
        raise InvalidRequest(
            f"progress_deadline_s is {strategy.progress_deadline_s:g}, must be more than min_ready_s and bake_s"
            f" ({waits_s:g})",
            param="progress_deadline_s",
        )
    if len(strategy.canary_tenants) > MAX_CANARY_TENANTS:
        raise InvalidRequest(
            f"canary_tenants has more than {MAX_CANARY_TENANTS} organisations", param="canary_tenants"
        )


class VersionFigures(msgspec.Struct, frozen=True):
    """What requests saw of one version since both serve; None = nothing to tell."""

    version: str
    requests: int = 0
    compared: int = 0
    """Those that ended while both versions took requests; times and lengths are of these."""
    failed: int = 0
    error_rate: float | None = None
    ttft_p50_s: float | None = None
    tpot_p50_s: float | None = None
    output_tokens: float | None = None
    """Mean of an answer."""
    acceptance: float | None = None
    """Share of the drafted tokens that was accepted, of an engine with speculative decoding."""
    agreement: float | None = None
    """Of the new version: share of the tokens of fixed greedy answers that are those of the old one, at the worst
    replica."""
    logprob_distance: float | None = None
    """Of the new version: mean difference of their log-probabilities, in nats, at the worst replica."""


class Progress(msgspec.Struct, frozen=True):
    """Counts of replicas, and the comparison of both versions."""

    wanted: int = -1
    """Replicas that were awake when it began; -1 = not known yet."""
    replicas: int = 0
    updated: int = 0
    """Those of the new version."""
    available: int = 0
    """Those that serve, of both versions."""
    surged: tuple[str, ...] = ()
    """Those that it has started beside the usual number."""
    old: VersionFigures | None = None
    new: VersionFigures | None = None


class Rollout(msgspec.Struct, frozen=True):
    """One rollout as it is stored."""

    rollout_id: UUID
    model: str
    before: EngineSpec
    after: EngineSpec
    strategy: Strategy
    state: RolloutState
    reason: str
    started_at: datetime
    changed_at: datetime
    """When its state last changed."""
    ended_at: datetime | None
    progress: Progress
    state_age_s: float = 0.0
    """Seconds since its state last changed, when it was read."""
    image: ImageChange | None = None
    """The image that is rolled out; None = it is a version of the engines. Both specs are alike then."""

    @property
    def group(self) -> HostGroup | None:
        """The hosts whose image is rolled out."""
        image = self.image
        return None if image is None else HostGroup(image.provider, image.region, image.kind, self.model)

    @property
    def versions(self) -> tuple[str, str]:
        """Names of the versions before and after: of engines, or of the images of their hosts."""
        if self.image is None:
            return self.before.version, self.after.version
        return image_version(self.image.before), image_version(self.image.after)

    def canary_hosts(self, count: int) -> int:
        """Hosts of the new image while it is a canary, where `count` are desired: at least one."""
        return max(1, min(math.ceil(count * self.strategy.canary_percent / 100), count - 1))

    def of_image(self, count: int) -> ImageRollout | None:
        """What the passes over providers carry out now, where `count` hosts are desired."""
        if self.image is None:
            return None
        most = {RolloutState.CANARY: self.canary_hosts(count), RolloutState.PROGRESSING: ALL_HOSTS}
        return ImageRollout(
            self.image.after,
            most.get(self.state, 0),
            self.strategy.max_surge > 0,
            self.strategy.max_unavailable > 0,
        )

    @property
    def target(self) -> EngineSpec:
        """What its replicas are to have."""
        back = self.state in (RolloutState.ROLLING_BACK, RolloutState.ROLLED_BACK)
        return self.before if back else self.after


def image_version(image: str) -> str:
    """Name of the version of hosts that are made from an image; empty = the image of the provider's settings."""
    return f"image {image or 'of the settings'}"


class RolloutUpdate(msgspec.Struct, frozen=True):
    """What the scheduler writes of a rollout that it read in the state `was`."""

    rollout_id: UUID
    was: RolloutState
    state: RolloutState
    reason: str
    progress: Progress


_SELECT = select(
    rollouts,
    text("extract(epoch FROM clock_timestamp() - changed_at)::double precision AS state_age_s"),
)
_UPDATE = text(
    """
    UPDATE rollouts SET state = :state, reason = :reason, progress = CAST(:progress AS jsonb),
        changed_at = CASE WHEN state = :state THEN changed_at ELSE clock_timestamp() END,
        ended_at = CASE WHEN :ended THEN clock_timestamp() END
    WHERE rollout_id = :rollout_id AND state = :was
        AND NOT EXISTS (SELECT FROM scheduler_lease WHERE term > :term)
    RETURNING model, CASE WHEN state = 'promoted' THEN after ELSE before END::text AS spec,
        image::text AS image
    """
)
_KEEP_IMAGE = text(
    """
    UPDATE desired_hosts SET image = :after, image_before = :before, image_at = clock_timestamp()
    WHERE (provider, region, kind, model) = (:provider, :region, :kind, :model)
    """
)
_DEPLOY = text(
    """
    INSERT INTO model_deployments (model, spec) VALUES (:model, CAST(:spec AS jsonb))
    ON CONFLICT (model) DO UPDATE SET spec = excluded.spec, since = clock_timestamp()
    """
)


async def read_rollouts(
    connection: AsyncConnection, *, model: str | None = None, active: bool = False, limit: int = 1_000
) -> list[Rollout]:
    """Rollouts, the newest first: of one model or all, `active`: those that have not ended."""
    query = _SELECT.order_by(rollouts.c.started_at.desc()).limit(limit)
    if model is not None:
        query = query.where(rollouts.c.model == model)
    if active:
        query = query.where(rollouts.c.ended_at.is_(None))
    return [_of(row) for row in await connection.execute(query)]


async def read_deployments(connection: AsyncConnection) -> dict[str, EngineSpec]:
    """By model: the version that its replicas have to have since its last rollout ended."""
    rows = await connection.execute(select(model_deployments))
    return {row.model: msgspec.convert(row.spec, EngineSpec) for row in rows}


async def add_rollout(
    connection: AsyncConnection,
    model: str,
    before: EngineSpec,
    after: EngineSpec,
    strategy: Strategy,
    reason: str,
    image: ImageChange | None = None,
) -> Rollout:
    """Begin a rollout. The caller has made sure that the model has none."""
    state = RolloutState.CANARY if strategy.has_canary else RolloutState.PROGRESSING
    made = await connection.execute(
        rollouts.insert()
        .values(
            model=model,
            before=msgspec.to_builtins(before),
            after=msgspec.to_builtins(after),
            strategy=msgspec.to_builtins(strategy),
            state=state.value,
            reason=reason,
            progress=msgspec.to_builtins(Progress()),
            image=null() if image is None else msgspec.to_builtins(image),
        )
        .returning(rollouts)
    )
    return _of(made.one())


async def write_updates(connection: AsyncConnection, updates: Sequence[RolloutUpdate], term: int) -> None:
    """Store what the scheduler of a term has decided, where no admin and no later scheduler has decided otherwise."""
    for update in updates:
        written = (
            await connection.execute(
                _UPDATE,
                {
                    "rollout_id": update.rollout_id,
                    "was": update.was.value,
                    "state": update.state.value,
                    # PostgreSQL takes no NUL, and an agent's text may have one.
                    "reason": update.reason.replace("\0", "")[:1_000],
                    "progress": msgspec.json.encode(update.progress).decode(),
                    "ended": update.state in ENDED,
                    "term": term,
                },
            )
        ).one_or_none()
        if written is None or update.state not in ENDED:
            continue
        if written.image is None:
            await connection.execute(_DEPLOY, {"model": written.model, "spec": written.spec})
        elif update.state is RolloutState.PROMOTED:
            await connection.execute(
                _KEEP_IMAGE, {**msgspec.json.decode(written.image), "model": written.model}
            )


def _of(row: Row[Any]) -> Rollout:
    facts = dict(row._mapping)
    return Rollout(
        **facts
        | {
            "before": msgspec.convert(row.before, EngineSpec),
            "after": msgspec.convert(row.after, EngineSpec),
            "strategy": msgspec.convert(row.strategy, Strategy),
            "progress": msgspec.convert(row.progress, Progress),
            "state": RolloutState(row.state),
            "image": None if row.image is None else msgspec.convert(row.image, ImageChange),
        }
    )
