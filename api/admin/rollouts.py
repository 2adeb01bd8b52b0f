"""Admin API: rollouts of new versions of models' engines, and of images of their hosts."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
from fastapi import APIRouter, Depends, Query
from pydantic import Field

from admin import rollouts
from admin.actor import Actor
from api.admin.deps import AdminDeps, Reason, RequestBody, ResponseModel
from core.errors import InvalidRequest
from workers.catalog import ArgValue

_NAME = "A model's name; it may contain slashes."


class FiguresOut(ResponseModel):
    """What requests saw of a version while both served; null = nothing to tell yet."""

    version: str
    requests: int
    compared: int = Field(
        description="Those that ended while both versions served; times and lengths are of these."
    )
    failed: int = Field(description="Requests that a replica failed; another one answered most of them.")
    error_rate: float | None
    ttft_p50_s: float | None = Field(description="Median seconds from the placement to the first token.")
    tpot_p50_s: float | None = Field(description="Median seconds per further token.")
    output_tokens: float | None = Field(description="Mean of an answer.")
    acceptance: float | None = Field(description="Share of the drafted tokens that was accepted.")
    agreement: float | None = Field(
        description="Of the new version: share of the tokens of fixed greedy answers that are those of the old one, at "
        "the worst replica; null = not compared."
    )
    logprob_distance: float | None = Field(
        description="Of the new version: mean difference of their log-probabilities, in nats, at the worst replica."
    )


class StrategyOut(ResponseModel):
    """How a version is rolled out, and what stops it."""

    max_surge: int
    max_unavailable: int
    canary_percent: int
    canary_tenants: tuple[str, ...]
    canary_by: str = Field(description="organisation or request: what canary_percent is of.")
    promote_after_s: float
    canary_deadline_s: float
    min_ready_s: float
    bake_s: float
    progress_deadline_s: float
    drain_s: float
    min_requests: int
    max_error_increase: float
    max_ttft_ratio: float
    max_tpot_ratio: float
    max_length_ratio: float
    max_acceptance_drop: float
    same_answer: bool
    min_agreement: float | None = Field(description="null = any")
    max_logprob_distance: float | None = Field(description="In nats; null = any.")


class ImageChangeOut(ResponseModel):
    """An image that is rolled out, and of which hosts."""

    provider: str
    region: str
    kind: str = Field(description="Of the hosts.")
    before: str = Field(description="Image of new hosts before; empty = the provider's settings say.")
    after: str


class RolloutOut(ResponseModel):
    """A rollout."""

    rollout_id: UUID
    model: str
    state: str = Field(description="canary, progressing, rolling_back, promoted or rolled_back")
    reason: str
    old_version: str
    new_version: str = Field(
        description="Name of its content; base = as hosts and catalog say; `image ID` of an image."
    )
    old_spec: dict[str, Any]
    new_spec: dict[str, Any]
    image: ImageChangeOut | None = Field(description="null = a version of the engines is rolled out.")
    wanted: int | None = Field(description="Replicas that were awake when it began; null = not known yet.")
    replicas: int
    updated: int = Field(description="Replicas of the new version.")
    available: int = Field(description="Replicas that serve.")
    old: FiguresOut | None
    new: FiguresOut | None
    strategy: StrategyOut
    started_at: datetime
    changed_at: datetime
    ended_at: datetime | None


class RolloutStart(RequestBody):
    """A version to roll out, or an image of the hosts; what is absent stays as in the version promoted last."""

    model: str = Field(description=_NAME, examples=["llama-3.3-70b"])
    profile: str | None = Field(default=None, max_length=200, description="With the same GPUs and ranks.")
    engine_version: str | None = Field(
        default=None, max_length=100, description="Hosts need its environment.", examples=["0.33.0"]
    )
    revision: str | None = Field(default=None, max_length=100, description="Of the weights on the hub.")
    args: dict[str, Any] = Field(
        default={},
        description="Arguments of the engine; null takes one away.",
        examples=[{"max-num-seqs": 512}],
    )
    from_base: bool = Field(default=False, description="What is absent stays as hosts and catalog say.")
    same_answer: bool | None = Field(
        default=None,
        description="Whether new engines must give the stored greedy answer; "
        "default: unless profile or revision change.",
    )
    image: str | None = Field(
        default=None,
        max_length=100,
        description="Of the model's hosts, and of nothing else.",
        examples=["183456789"],
    )
    region: str | None = Field(
        default=None, max_length=100, description="Of the hosts, where the model has several groups."
    )
    host_kind: str | None = Field(default=None, max_length=100, description="Likewise.")
    strategy: dict[str, Any] = Field(
        default={},
        description="Fields of the strategy.",
        examples=[{"canary_percent": 10, "max_unavailable": 1}],
    )
    reason: Reason


class RolloutDecision(RequestBody):
    """The model whose rollout is decided on."""

    model: str = Field(description=_NAME, examples=["llama-3.3-70b"])
    reason: Reason


def router(deps: AdminDeps) -> APIRouter:
    """Routes of rollouts."""
    routes = deps.router("models")
    auth = Depends(deps.actor)

    @routes.get("/models/rollouts")
    async def list_rollouts(
        actor: Annotated[Actor, auth],
        model: Annotated[str | None, Query(description="Of one model only.")] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> list[RolloutOut]:
        """Rollouts, the newest first."""
        found = await rollouts.list_rollouts(deps.database, actor, model=model, limit=limit)
        return [RolloutOut.model_validate(each) for each in found]

    @routes.post("/models/rollouts", status_code=201)
    async def start_rollout(body: RolloutStart, actor: Annotated[Actor, auth]) -> RolloutOut:
        """Begin to replace the engines of a model's replicas, or its hosts. The scheduler follows within seconds."""
        given = body.model_dump()
        try:
            given["args"] = msgspec.convert(body.args, dict[str, ArgValue | None])
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"args have the wrong shape: {error}", param="args") from None
        return RolloutOut.model_validate(await rollouts.start_rollout(deps.database, actor, **given))

    @routes.post("/models/rollouts/promote")
    async def promote_rollout(body: RolloutDecision, actor: Annotated[Actor, auth]) -> RolloutOut:
        """Let a canary go on: all other replicas get its version."""
        return RolloutOut.model_validate(
            await rollouts.promote_rollout(deps.database, actor, **body.model_dump())
        )

    @routes.post("/models/rollouts/abort")
    async def abort_rollout(body: RolloutDecision, actor: Annotated[Actor, auth]) -> RolloutOut:
        """Bring all replicas back to the version of before."""
        return RolloutOut.model_validate(
            await rollouts.abort_rollout(deps.database, actor, **body.model_dump())
        )

    return routes
