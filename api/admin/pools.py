"""Admin API: the live pools, and commands to replicas."""

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import Field

from admin import acting as admin_acting
from admin import pools as admin_pools
from admin.actor import Actor
from api.admin.deps import AdminDeps, RequestBody, ResponseModel
from core.errors import Unavailable
from scheduler.client import SchedulerClient

State = Literal["loading", "ready", "asleep", "draining", "failed", "stopped"]
Action = Literal["drain", "resume", "sleep", "wake", "restart"]


class ReplicaOut(ResponseModel):
    """A replica: one engine that serves one model."""

    replica_id: str
    model: str
    state: State
    phase: str = Field(
        description="What it does in more detail, such as prefetching; empty when an older agent reports it."
    )
    engine: str
    simulated: bool
    running: int = Field(description="Requests in its batch.")
    waiting: int = Field(description="Requests in the engine's own queue.")
    kv_usage_pct: float
    prefix_kind: str = Field(
        description="How prompts are matched with its cache: text (what was routed to it) or tokens (its own events)."
    )
    restarts: int
    gpus: int
    url: str
    detail: str = Field(description="Why it is not ready; empty when it is.")
    version: str = Field(
        description="Of its engine, by the last rollout; empty = as its host's settings say."
    )
    weights_done_bytes: int = Field(
        description="While it is prefetching: bytes of its weights that are on the host, or checked; else 0."
    )
    weights_total_bytes: int = Field(description="Bytes of all its weights then; 0 when not known.")


class FindingOut(ResponseModel):
    """One thing that the checks of a host found."""

    severity: Literal["note", "degraded", "refused"]
    check: str
    text: str


class _Checked(ResponseModel):
    """The result of a check of a GPU host; a refused host runs no engine."""

    verdict: Literal["accepted", "degraded", "refused"]
    findings: list[FindingOut] = Field(description="The worst first.")
    figures: dict[str, float] = Field(description="What was measured, with the unit in each name.")


class ReportOut(_Checked):
    """What the last check of a GPU host found; a refused host runs no engine."""

    at_unix_ms: int


class AcceptanceOut(_Checked):
    """A check of a GPU host, as it is stored."""

    host_id: str
    at: datetime


class HostOut(ResponseModel):
    """A host, as of the last heartbeat of its agent."""

    host_id: str
    agent_id: str
    host_kind: str
    region: str
    gpus: int
    last_seen_s: float = Field(description="Seconds since the last heartbeat.")
    state_seconds: dict[str, int]
    acceptance: ReportOut | None = Field(description="null = it has no GPUs, or is being checked.")


class QueueOut(ResponseModel):
    """The queue of a model."""

    model: str
    waiting: int
    oldest_s: float
    in_flight: int


class PoolsOut(ResponseModel):
    """The live state of all pools."""

    at_unix_ms: int
    replicas: list[ReplicaOut]
    hosts: list[HostOut]
    queues: list[QueueOut]


class PlacePlanOut(ResponseModel):
    """Replicas of a model that requests, or a minimum, need in some regions, on some GPUs or kinds of hosts."""

    regions: list[str] = Field(description="Any of these; empty = any.")
    gpus: list[str]
    awake: int
    pending: int
    target: int = Field(description="At least so many of the model's target have to be there.")
    kinds: list[str] = Field(description="On hosts of one of these kinds; empty = any.")


class ModelPlanOut(ResponseModel):
    """Replicas that the autoscaler wants of a model."""

    model: str
    awake: int
    pending: int = Field(description="Replicas that are waking, or will be on hosts in creation.")
    target: int
    planned_rps: float
    reason: str
    turn_in_s: float | None = Field(
        description="Seconds until its first replica serves, where it waits for GPUs that other models use."
    )
    places: list[PlacePlanOut] = Field(description="Where requests are bound, or a minimum is set.")
    most: dict[str, int] = Field(
        description="Kinds of hosts with a maximum: how many replicas may be awake on their hosts."
    )


class PlanChangeOut(ResponseModel):
    """A replica that the autoscaler would move."""

    replica_id: str
    region: str
    before: str
    after: str
    reason: str


class KindPlanOut(ResponseModel):
    """Hosts of one kind."""

    kind: str
    present: int
    creating: int
    desired: int
    failures: int
    retry_in_s: float


class HostCreationOut(ResponseModel):
    """Hosts that the autoscaler would create."""

    kind: str
    model: str
    count: int
    regions: list[str] = Field(description="In one of these; empty = wherever the kind may be created.")
    shares: str = Field(description="The models that will share them, this one among them; empty = it alone.")
    reason: str


class HostRemovalOut(ResponseModel):
    """A host that the autoscaler would destroy."""

    host_id: str
    kind: str
    region: str
    reason: str


class HostKeptOut(ResponseModel):
    """A host that the autoscaler needs for nothing now and keeps."""

    host_id: str
    kind: str
    region: str
    reason: str


class PlanOut(ResponseModel):
    """What the autoscaler plans."""

    models: list[ModelPlanOut]
    changes: list[PlanChangeOut]
    changes_total: int = Field(description="Number of all moves; `changes` has the first of them.")
    kinds: list[KindPlanOut]
    create: list[HostCreationOut]
    destroy: list[HostRemovalOut]
    kept: list[HostKeptOut]


class ActingOut(ResponseModel):
    """Whether the autoscaler's plan is acted on."""

    acting: Literal["off", "dry-run", "on"]
    budget_usd_per_month: str | None = Field(
        description="Most dollars in a UTC month for all hosts that no contract covers; null = no limit."
    )


class ActingUpdate(RequestBody):
    """Another switch or budget; what is absent stays as it is."""

    acting: Literal["off", "dry-run", "on"] | None = None
    budget_usd_per_month: Annotated[
        str | None, Field(description="A decimal, or none for no limit.", examples=["20000.00"])
    ] = None
    reason: Annotated[str, Field(min_length=1, max_length=500, examples=["Dry run went well"])]


class ActOut(ResponseModel):
    """Something that was done for the autoscaler's plan, would have been done, or was refused."""

    at: datetime
    model: str
    target: str = Field(description="A host, a replica, or PROVIDER/REGION/KIND of hosts to create.")
    act: str = Field(description="create, destroy, sleep, wake, stop or resume.")
    reason: str
    mode: Literal["off", "dry-run", "on"]
    result: Literal["done", "failed", "refused", "dry-run"]
    detail: str = Field(description="Why it failed or was refused.")


class CommandCreate(RequestBody):
    """The reason of a command, the seconds that it may take, and the level of a sleep."""

    reason: Annotated[str, Field(min_length=1, max_length=500, examples=["New driver, ticket 4711"])]
    deadline_s: Annotated[float, Field(gt=0, le=admin_pools.MAX_DEADLINE_S)] = 120.0
    level: Annotated[
        int | None,
        Field(
            ge=1,
            le=2,
            description="Of a sleep only: 1, the default, keeps the weights in the host's memory; 2 drops them, and a "
            "wake reads them again.",
        ),
    ] = None


class CommandOut(ResponseModel):
    """The result of a command that the agent has carried out."""

    replica_id: str
    action: Action
    message: str


def router(deps: AdminDeps) -> APIRouter:
    """Routes of the pools."""
    routes = deps.router("pools")
    auth = Depends(deps.actor)

    @routes.get("/pools", summary="Get hosts, replicas and queues")
    async def get_pools(actor: Annotated[Actor, auth]) -> PoolsOut:
        return PoolsOut.model_validate(await admin_pools.get_pools(actor, client=_scheduler(deps)))

    @routes.get("/pools/plan", summary="Get what the autoscaler plans")
    async def get_plan(actor: Annotated[Actor, auth]) -> PlanOut:
        return PlanOut.model_validate(await admin_pools.get_plan(actor, client=_scheduler(deps)))

    @routes.get("/pools/acceptances", summary="List what the checks of GPU hosts found, the newest first")
    async def list_acceptances(
        actor: Annotated[Actor, auth],
        host_id: Annotated[str | None, Query(max_length=200, description="Of one host only.")] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> list[AcceptanceOut]:
        found = await admin_pools.list_acceptances(deps.database, actor, host_id=host_id, limit=limit)
        return [AcceptanceOut.model_validate(each) for each in found]

    @routes.get("/pools/timeline", summary="List what was done for the autoscaler's plan, the newest first")
    async def list_timeline(
        actor: Annotated[Actor, auth],
        model: Annotated[str | None, Query(max_length=200, description="For one model only.")] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> list[ActOut]:
        found = await admin_acting.timeline(deps.database, actor, model=model, limit=limit)
        return [ActOut.model_validate(each) for each in found]

    @routes.get("/pools/acting", summary="Get whether the autoscaler's plan is acted on")
    async def get_acting(actor: Annotated[Actor, auth]) -> ActingOut:
        return ActingOut.model_validate(await admin_acting.get_acting(deps.database, actor))

    @routes.put("/pools/acting", summary="Set whether the autoscaler's plan is acted on")
    async def set_acting(actor: Annotated[Actor, auth], body: ActingUpdate) -> ActingOut:
        view = await admin_acting.set_acting(deps.database, actor, **body.model_dump())
        return ActingOut.model_validate(view)

    @routes.post("/pools/replicas/{replica_id:path}/{action}", summary="Send a command to a replica")
    async def command_replica(
        actor: Annotated[Actor, auth], replica_id: str, action: Action, body: CommandCreate
    ) -> CommandOut:
        outcome = await admin_pools.command_replica(
            deps.database,
            actor,
            client=_scheduler(deps),
            replica_id=replica_id,
            action=action,
            reason=body.reason,
            deadline_s=body.deadline_s,
            level=body.level,
        )
        return CommandOut.model_validate(outcome)

    return routes


def _scheduler(deps: AdminDeps) -> SchedulerClient:
    if deps.scheduler is None:
        raise Unavailable("This process has no connection to the scheduler.")
    return deps.scheduler
