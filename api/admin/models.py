"""Admin API: the models that are offered."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Depends, Response
from pydantic import Field

from admin import acting as admin_acting
from admin import added_models, model_life, models, scaling, targets
from admin.actor import Actor, require
from api.admin.deps import AdminDeps, RequestBody, ResponseModel
from api.admin.model_waking import add_waking_routes
from core.errors import InvalidRequest
from tenants.roles import PLATFORM_ADMIN
from workers.catalog import ArgValue
from workers.model_config import fetch_config
from workers.model_definition import NewModel, ProfileFile
from workers.service_level import Tier

_NAME = "A model's name; it may contain slashes."
_DATE = "When it retires by itself: a date or instant in UTC, or none for no date."


Acting = Literal["off", "dry-run", "on", "platform"]


class ModelOut(ResponseModel):
    """A model or an alias."""

    name: str
    status: str = Field(description="active, deprecated or retired")
    alias_of: str | None
    note: str | None
    created_at: datetime
    origin: models.Origin = Field(description="Where its description is from.")
    deprecated_at: datetime | None = Field(description="Since when its users are told that it goes.")
    retires_at: datetime | None = Field(description="From when it is retired; null = no date is set.")
    replacement: str | None = Field(description="The model to use instead.")
    redirected: bool = Field(description="Whether the replacement answers for it once it is retired.")


class ModelCreate(RequestBody):
    """A model of the catalog to offer."""

    name: str = Field(description=_NAME, examples=["llama-3.3-70b"])
    note: str | None = None


class ModelAdd(RequestBody):
    """A model that the catalog does not have, with the kind of host that it is to run on."""

    name: str = Field(description=_NAME, examples=["Qwen/Qwen3-32B"])
    host_kind: str = Field(max_length=200, examples=["gpu-h100x8-640gb"])
    gpus: int = Field(ge=0, le=1024, description="GPUs of one engine.", examples=[2])
    weights: str = Field(
        default="", max_length=1000, description="A directory that every host has, or a name on the hub."
    )
    revision: str | None = Field(default=None, max_length=200)
    config: dict[str, Any] | None = Field(
        default=None,
        description="The model's config.json; default: read from the hub. Needed for a directory.",
    )
    weight_bytes: int = Field(default=0, ge=0, le=2**50, description="0 = computed from config.json.")
    args: dict[str, Any] = Field(default={}, description="Arguments of the engine.")
    profile: dict[str, Any] = Field(default={}, description="args, env and figures that are known better.")
    note: str | None = Field(default=None, max_length=500)
    unchecked: bool = Field(default=False, description="Do not ask the engine's parser about the arguments.")
    dry_run: bool = Field(default=False, description="Only check and compute; nothing is stored.")


class AliasUpdate(RequestBody):
    """An alias of a model."""

    name: str = Field(examples=["llama-latest"])
    target: str = Field(examples=["llama-3.3-70b"])


class ModelRetire(RequestBody):
    """A model to retire."""

    name: str = Field(description=_NAME)
    note: str | None = Field(default=None, description="What customers should do, or why.")


class ModelDeprecate(ModelRetire):
    """A model to deprecate; what is absent stays as it is."""

    retires_at: str | None = Field(default=None, description=_DATE, examples=["2027-03-01"])
    replacement: str | None = Field(
        default=None,
        description="A model to use instead, or none. It is only told.",
        examples=["qwen3.5-397b"],
    )


class ModelReplace(ModelRetire):
    """A model whose requests another is to answer."""

    replacement: str = Field(description="The model that answers, at its price.", examples=["qwen3.5-397b"])
    retires_at: str | None = Field(
        default=None, description="Date or instant in UTC; default: now.", examples=["2027-03-01"]
    )
    accept_loss: bool = Field(
        default=False,
        description="Let it answer though it lacks abilities or context of the model: `abilities_lost` otherwise.",
    )


class TargetsOut(ResponseModel):
    """What one tier of a model is promised."""

    model: str
    tier: Tier
    ttft_s: float = Field(description="Seconds to the first token, on top of the prompt's own prefill.")
    tpot_s: float = Field(description="Mean seconds per output token after the first.")
    source: targets.Source = Field(description="Who set them; default = the catalog has none for this tier.")


class TargetsUpdate(RequestBody):
    """Other targets of one tier of a model; what is absent stays as it is."""

    model: str = Field(description=_NAME, examples=["llama-3.3-70b"])
    tier: Tier = "standard"
    ttft_s: float | None = Field(default=None, examples=[1.0])
    tpot_s: float | None = Field(default=None, examples=[0.05])
    reason: str | None = None


class TargetsReset(RequestBody):
    """A tier of a model that returns to the catalog's targets."""

    model: str = Field(description=_NAME, examples=["llama-3.3-70b"])
    tier: Tier = "standard"
    reason: str | None = None


class ScalingOut(ResponseModel):
    """What the autoscaler may do for a model."""

    model: str
    min_awake: int = Field(description="Replicas that are always awake; it comes before the budget.")
    max_awake: int
    budget_usd_per_hour: str | None = Field(
        description="Most dollars per hour for its hosts that no contract covers; null = no limit."
    )
    host_kinds: list[str] = Field(
        description="Kinds of hosts that may be created for it, tried in this order; none = no hosts are created."
    )
    source: Literal["admin", "default"]
    budget_usd_per_month: str | None = Field(
        description="Most dollars in a UTC month for those hosts: none is created beyond it, and the newest are "
        "destroyed; null = no limit."
    )
    profile: str = Field(
        description="The engine profile with which those hosts serve it; empty = the first that fits."
    )
    acting: Acting = Field(
        description="Whether the plan is acted on; platform = as the platform's switch says."
    )
    regions: list[str] = Field(
        description="Replicas that are awake in single regions, as REGION=MIN-MAX, beside the limits of all.",
        examples=[["tor1=1-4"]],
    )
    kinds: list[str] = Field(
        description="Replicas that are awake on hosts of a kind, as KIND=MIN-MAX, beside the limits of all.",
        examples=[["gpu-h200x8-1128gb=1-4"]],
    )
    shares: str = Field(
        description="The models with which it shares hosts that are created, itself among them; empty = none.",
        examples=["llama-3.3-70b,minimax-m2.5"],
    )


class ScalingUpdate(RequestBody):
    """Other limits of the autoscaler for a model; what is absent stays as it is."""

    model: str = Field(description=_NAME, examples=["llama-3.3-70b"])
    min_awake: int | None = Field(default=None, examples=[1])
    max_awake: int | None = Field(default=None, examples=[8])
    budget_usd_per_hour: str | None = Field(
        default=None, description="A decimal, or none for no limit.", examples=["128.00"]
    )
    host_kinds: list[str] | None = Field(default=None, examples=[["gpu-h100x8-640gb"]])
    budget_usd_per_month: str | None = Field(
        default=None, description="A decimal, or none for no limit.", examples=["20000.00"]
    )
    acting: Acting | None = None
    profile: str | None = Field(
        default=None,
        max_length=100,
        description="A profile of the model for hosts that are created from now on, or first-fit.",
        examples=["dp8"],
    )
    regions: Annotated[list[Annotated[str, Field(max_length=80)]], Field(max_length=32)] | None = Field(
        default=None,
        description="Replicas that are awake in single regions, as REGION=MIN-MAX; they replace those that are set.",
        examples=[["tor1=1-4"]],
    )
    kinds: Annotated[list[Annotated[str, Field(max_length=240)]], Field(max_length=32)] | None = Field(
        default=None,
        description="Replicas that are awake on hosts of a kind, as KIND=MIN-MAX; they replace those that are set.",
        examples=[["gpu-h200x8-1128gb=1-4"]],
    )
    shares: str | None = Field(
        default=None,
        max_length=200,
        description="The models that share hosts which are created, this one among them, as PENSTOCK_MODEL has them, "
        "or none. It is set for each of them.",
        examples=["llama-3.3-70b,minimax-m2.5"],
    )
    reason: str | None = None


class HoldOut(ResponseModel):
    """How many replicas of a model a person holds awake."""

    model: str
    awake: int
    until: datetime
    reason: str


class HoldCreate(RequestBody):
    """A number of replicas to keep awake for a time, whatever the autoscaler needs."""

    model: str = Field(description=_NAME, examples=["llama-3.3-70b"])
    awake: int = Field(ge=0, le=1024, examples=[4])
    seconds: int = Field(gt=0, le=31 * 86_400, description="How long.", examples=[7200])
    reason: str = Field(min_length=1, max_length=500, examples=["The launch"])


class HoldRelease(RequestBody):
    """A hold to end before its time."""

    model: str = Field(description=_NAME, examples=["llama-3.3-70b"])
    reason: str = Field(min_length=1, max_length=500, examples=["The launch is over"])


class ScalingReset(RequestBody):
    """A model that returns to the default limits."""

    model: str = Field(description=_NAME, examples=["llama-3.3-70b"])
    reason: str | None = None


def router(deps: AdminDeps) -> APIRouter:
    """Routes of models. Names are sent in bodies, since they may contain slashes."""
    routes = deps.router("models")

    @routes.get("/models")
    async def list_models(actor: Annotated[Actor, Depends(deps.actor)]) -> list[ModelOut]:
        """Every model and alias, retired ones included."""
        return [ModelOut.model_validate(view) for view in await models.list_models(deps.database, actor)]

    @routes.post("/models", status_code=201)
    async def add_model(body: ModelCreate, actor: Annotated[Actor, Depends(deps.actor)]) -> ModelOut:
        """Offer a model of the catalog; a retired or deprecated one is offered again, without an end."""
        return ModelOut.model_validate(
            await models.add_model(deps.database, actor, name=body.name, note=body.note)
        )

    _add_added_routes(routes, deps)

    _add_life_routes(routes, deps)
    _add_target_routes(routes, deps)
    _add_scaling_routes(routes, deps)
    add_waking_routes(routes, deps)
    return routes


def _add_life_routes(routes: APIRouter, deps: AdminDeps) -> None:
    """The routes of aliases and of the end of models. Each act is idempotent."""

    @routes.put("/models/alias")
    async def set_alias(body: AliasUpdate, actor: Annotated[Actor, Depends(deps.actor)]) -> ModelOut:
        """Create or change an alias. Every API process follows within two seconds."""
        return ModelOut.model_validate(
            await models.set_alias(deps.database, actor, name=body.name, target=body.target)
        )

    @routes.post("/models/deprecate")
    async def deprecate_model(body: ModelDeprecate, actor: Annotated[Actor, Depends(deps.actor)]) -> ModelOut:
        """Deprecate a model, and tell its users. It is served until its date."""
        return ModelOut.model_validate(
            await model_life.deprecate_model(deps.database, actor, **body.model_dump())
        )

    @routes.post("/models/retire")
    async def retire_model(body: ModelRetire, actor: Annotated[Actor, Depends(deps.actor)]) -> ModelOut:
        """Stop serving a model or an alias now."""
        return ModelOut.model_validate(
            await model_life.retire_model(deps.database, actor, name=body.name, note=body.note)
        )

    @routes.post("/models/replace")
    async def replace_model(body: ModelReplace, actor: Annotated[Actor, Depends(deps.actor)]) -> ModelOut:
        """Retire a model now or at a date, and let another answer requests for it from then on."""
        return ModelOut.model_validate(
            await model_life.replace_model(deps.database, actor, **body.model_dump())
        )


def _add_added_routes(routes: APIRouter, deps: AdminDeps) -> None:
    @routes.post("/models/added", status_code=201)
    async def add_any_model(
        body: ModelAdd, actor: Annotated[Actor, Depends(deps.actor)], response: Response
    ) -> dict[str, Any]:
        """Add a model that the catalog does not have: its fit, where its figures start, its engine's command.

        A dry run answers the same with status 200.
        """
        require(actor, PLATFORM_ADMIN)
        view = await added_models.add(
            deps.database,
            actor,
            new=await _new_model(body),
            engine_env=deps.settings.engine_env,
            today=datetime.now(UTC).date(),
            note=body.note,
            unchecked=body.unchecked,
            dry_run=body.dry_run,
        )
        if body.dry_run:
            response.status_code = 200
        shown: dict[str, Any] = msgspec.to_builtins(view)
        return shown

    @routes.post("/models/removed")
    async def remove_model(body: ModelRetire, actor: Annotated[Actor, Depends(deps.actor)]) -> ModelOut:
        """Take a model out of service that was added."""
        return ModelOut.model_validate(
            await added_models.remove(deps.database, actor, name=body.name, note=body.note)
        )


async def _new_model(body: ModelAdd) -> NewModel:
    """The model of a body, with its config.json. A directory on this machine is never read. Raises InvalidRequest."""
    config = body.config
    if config is None and body.weights.startswith((".", "/")):
        raise InvalidRequest("weights in a directory need the config: give its config.json", param="config")
    if config is None:
        config = await asyncio.to_thread(fetch_config, body.weights or body.name, body.revision)
    try:
        return NewModel(
            name=body.name,
            config=config,
            host_kind=body.host_kind,
            gpus=body.gpus,
            weights=body.weights,
            revision=body.revision,
            args=msgspec.convert(body.args, dict[str, ArgValue]),
            profile=msgspec.convert(body.profile, ProfileFile),
            weight_bytes=body.weight_bytes,
        )
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"args or profile have the wrong shape: {error}", param="args") from None


def _add_target_routes(routes: APIRouter, deps: AdminDeps) -> None:
    """The routes of latency targets."""

    @routes.get("/models/targets")
    async def list_targets(
        actor: Annotated[Actor, Depends(deps.actor)], model: str | None = None
    ) -> list[TargetsOut]:
        """What each tier of the offered models is promised, or of one model."""
        found = await targets.list_targets(deps.database, actor, model=model)
        return [TargetsOut.model_validate(view) for view in found]

    @routes.put("/models/targets")
    async def set_targets(body: TargetsUpdate, actor: Annotated[Actor, Depends(deps.actor)]) -> TargetsOut:
        """Change what a tier of a model is promised. The scheduler follows within seconds."""
        return TargetsOut.model_validate(await targets.set_targets(deps.database, actor, **body.model_dump()))

    @routes.post("/models/targets/reset")
    async def reset_targets(body: TargetsReset, actor: Annotated[Actor, Depends(deps.actor)]) -> TargetsOut:
        """Return a tier of a model to the catalog's targets."""
        return TargetsOut.model_validate(
            await targets.reset_targets(deps.database, actor, **body.model_dump())
        )


def _add_scaling_routes(routes: APIRouter, deps: AdminDeps) -> None:
    """The routes of the autoscaler's limits."""

    @routes.get("/models/scaling")
    async def list_scaling(
        actor: Annotated[Actor, Depends(deps.actor)], model: str | None = None
    ) -> list[ScalingOut]:
        """What the autoscaler may do for the offered models, or for one."""
        found = await scaling.list_scaling(deps.database, actor, model=model)
        return [ScalingOut.model_validate(view) for view in found]

    @routes.put("/models/scaling")
    async def set_scaling(body: ScalingUpdate, actor: Annotated[Actor, Depends(deps.actor)]) -> ScalingOut:
        """Change what the autoscaler may do for a model. The scheduler follows within seconds."""
        return ScalingOut.model_validate(await scaling.set_scaling(deps.database, actor, **body.model_dump()))

    @routes.post("/models/scaling/reset")
    async def reset_scaling(body: ScalingReset, actor: Annotated[Actor, Depends(deps.actor)]) -> ScalingOut:
        """Return a model to the default limits: no minimum, no budget, no hosts created."""
        return ScalingOut.model_validate(
            await scaling.reset_scaling(deps.database, actor, **body.model_dump())
        )

    @routes.get("/models/scaling/holds")
    async def list_holds(actor: Annotated[Actor, Depends(deps.actor)]) -> list[HoldOut]:
        """How many replicas of which model a person holds awake, and until when."""
        found = await admin_acting.list_holds(deps.database, actor)
        return [HoldOut.model_validate(hold) for hold in found]

    @routes.put("/models/scaling/holds")
    async def hold_replicas(body: HoldCreate, actor: Annotated[Actor, Depends(deps.actor)]) -> HoldOut:
        """Decide in the autoscaler's place how many replicas of a model are awake, for a time."""
        hold = await admin_acting.hold_replicas(
            deps.database,
            actor,
            model=body.model,
            awake=body.awake,
            hold_for=timedelta(seconds=body.seconds),
            reason=body.reason,
        )
        return HoldOut.model_validate(hold)

    @routes.post("/models/scaling/holds/release")
    async def release_replicas(body: HoldRelease, actor: Annotated[Actor, Depends(deps.actor)]) -> HoldOut:
        """End a hold before its time; returns it."""
        ended = await admin_acting.release_replicas(deps.database, actor, **body.model_dump())
        return HoldOut.model_validate(ended)
