"""The limits of the autoscaler by model: replicas awake, budget per hour, kinds of hosts to create.

The scheduler reads changes within seconds (workers.scaling).
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
from sqlalchemy import delete
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor, require
from admin.model_settings import offered, record_change
from admin.transactions import read, write
from core.db import Database
from core.errors import Conflict, InvalidRequest
from core.money import pico_to_usd, usd_to_pico
from tenants.names import clean_places
from tenants.roles import PLATFORM_ADMIN, READERS
from workers.acting.plan import Mode
from workers.added_models import read_catalog
from workers.catalog import CatalogModel, load_catalog
from workers.host_fit import check_fit, shared_on
from workers.host_models import parse_models
from workers.models import read_models
from workers.providers.interface import MAX_GROUP, models_of
from workers.scaling import (
    NO_LIMITS,
    KindReplicas,
    RegionReplicas,
    ScalingLimits,
    limits_problem,
    read_host_prices,
    read_limits,
)
from workers.tables import model_scaling

NONE = "none"
"""In place of a budget: no limit."""
AS_PLATFORM = "platform"
"""In place of a model's own switch: the platform's."""
FIRST_FIT = "first-fit"
"""In place of a profile: the first one that fits."""


class ScalingView(msgspec.Struct, frozen=True):
    """The limits of one model."""

    model: str
    min_awake: int
    max_awake: int
    budget_usd_per_hour: str | None
    """Most dollars per hour for its hosts that no contract covers, an exact decimal; None = no limit."""
    host_kinds: list[str]
    """Kinds of hosts that may be created for it, tried in this order; none = no hosts are created."""
    source: Literal["admin", "default"]
    budget_usd_per_month: str | None = None
    """Most dollars in a UTC month for its hosts that no contract covers, an exact decimal; None = no limit."""
    profile: str = ""
    """The profile with which those hosts serve it; empty = the first that fits."""
    acting: str = AS_PLATFORM
    """Whether the plan is acted on for it: off, dry-run, on, or as the platform."""
    regions: list[str] = []
    """Replicas that are awake in single regions, as REGION=MIN-MAX, beside the limits of all."""
    kinds: list[str] = []
    """Replicas that are awake on hosts of a kind, as KIND=MIN-MAX, beside the limits of all."""
    shares: str = ""
    """The models with which it shares hosts that are created, itself among them; empty = its hosts are its own."""


async def list_scaling(database: Database, actor: Actor, *, model: str | None = None) -> list[ScalingView]:
    """The limits of every model of the catalog that is offered, or of one. Every role of the platform may read them.

    Raises NotFound, and Conflict for an alias or the model of an external engine.
    """
    async with read(database, actor, READERS, tenant_id=actor.tenant_id) as connection:
        stored = await read_limits(connection)
        if model is not None:
            return [_view((await scaled_model(connection, model)).name, stored)]
        catalog = await read_catalog(connection)
        return [
            _view(row.name, stored)
            for row in await read_models(connection)
            if row.alias_of is None
            and row.status != "retired"
            and row.spec is None
            and row.name in catalog.models
        ]


async def set_scaling(
    database: Database,
    actor: Actor,
    *,
    model: str,
    min_awake: int | None = None,
    max_awake: int | None = None,
    budget_usd_per_hour: str | None = None,
    host_kinds: Sequence[str] | None = None,
    budget_usd_per_month: str | None = None,
    acting: str | None = None,
    profile: str | None = None,
    regions: Sequence[str] | None = None,
    kinds: Sequence[str] | None = None,
    shares: str | None = None,
    reason: str | None = None,
) -> ScalingView:
    """Set the limits of a model; what is not given stays as it is. The budget `none` removes that limit.

    `shares` names the models that share hosts which are created, the model among them, as PENSTOCK_MODEL does; NONE
    ends that. It is set for each of them.

    `acting` is a Mode, or AS_PLATFORM; the profile FIRST_FIT removes the choice of one, and another one holds for hosts
    that are created from then on. Raises NotFound, Conflict for an alias or the model of an external engine,
    InvalidRequest when a figure is out of range, nothing is given, the profile is not known, or a kind of host has no
    price or none of the model's profiles runs on it, or not all the models that share hosts fit there.
    """
    require(actor, PLATFORM_ADMIN)
    given = (
        min_awake,
        max_awake,
        budget_usd_per_hour,
        host_kinds,
        budget_usd_per_month,
        acting,
        profile,
        regions,
        kinds,
        shares,
    )
    if all(each is None for each in given):
        raise InvalidRequest(
            "give min_awake, max_awake, budget_usd_per_hour, budget_usd_per_month, host_kinds, acting, profile, "
            "regions, kinds or shares: there is nothing to change"
        )
    async with write(database, actor) as connection:
        known = await scaled_model(connection, model)
        stored = await read_limits(connection)
        before = stored.get(model, NO_LIMITS)
        limits = ScalingLimits(
            before.min_awake if min_awake is None else min_awake,
            before.max_awake if max_awake is None else max_awake,
            before.budget_usd_pico_per_hour
            if budget_usd_per_hour is None
            else parse_budget(budget_usd_per_hour, "budget_usd_per_hour"),
            before.host_kinds if host_kinds is None else tuple(host_kinds),
            before.acting if acting is None else _mode(acting),
            before.budget_usd_pico_per_month
            if budget_usd_per_month is None
            else parse_budget(budget_usd_per_month, "budget_usd_per_month"),
            before.profile if profile is None else _profile(known, profile),
            before.regions if regions is None else tuple(_region(each) for each in regions),
            before.kinds if kinds is None else tuple(_kind(each) for each in kinds),
            before.shares if shares is None else _shares(model, shares),
        )
        if (problem := limits_problem(limits)) is not None:
            raise InvalidRequest(problem[1], param=problem[0])
        if kinds is not None:
            for each in limits.kinds:
                check_fit(load_catalog(), known, each.kind, limits.profile, "kinds")
        if host_kinds is not None or profile is not None:
            _check_kinds(known, limits, await read_host_prices(connection))
        if limits.shares and not (shares is None and host_kinds is None and profile is None):
            await _check_sharing(connection, limits.shares, stored | {model: limits}, before.shares)
        await _store(connection, model, limits)
        if limits.shares != before.shares:
            await _share_with_others(connection, actor, model, stored, limits.shares, reason)
        after = _view(model, {model: limits})
        await record_change(
            connection, actor, model, "model.set_scaling", _view(model, stored), after, reason
        )
    return after


async def reset_scaling(
    database: Database, actor: Actor, *, model: str, reason: str | None = None
) -> ScalingView:
    """Return a model to the default limits: no minimum, no budget, no hosts created. Raises as `set_scaling`."""
    require(actor, PLATFORM_ADMIN)
    async with write(database, actor) as connection:
        await scaled_model(connection, model)
        stored = await read_limits(connection)
        before = _view(model, stored)
        await _share_with_others(connection, actor, model, stored, "", reason)
        await connection.execute(delete(model_scaling).where(model_scaling.c.model == model))
        after = _view(model, {})
        await record_change(connection, actor, model, "model.reset_scaling", before, after, reason)
    return after


async def _store(connection: AsyncConnection, model: str, limits: ScalingLimits) -> None:
    figures = msgspec.structs.asdict(limits) | {
        "host_kinds": list(limits.host_kinds),
        "regions": msgspec.to_builtins(limits.regions),
        "kinds": msgspec.to_builtins(limits.kinds),
    }
    await connection.execute(
        insert(model_scaling)
        .values(model=model, **figures)
        .on_conflict_do_update(index_elements=["model"], set_=figures)
    )


def _shares(model: str, text: str) -> str:
    """The models that share hosts, as they are stored; `model` is one of several. Raises InvalidRequest."""
    if text == NONE:
        return ""
    if len(text) > MAX_GROUP:
        raise InvalidRequest(f"shares has at most {MAX_GROUP} characters", param="shares")
    names = [placed.name for placed in parse_models(text)]
    if model not in names or len(names) < 2:
        raise InvalidRequest(
            f"shares is {text!r}; it must name {model!r} and the models with which it shares hosts, such as "
            f"{model},OTHER, or be `{NONE}`",
            param="shares",
        )
    return ",".join(part.strip() for part in text.split(","))


async def _check_sharing(
    connection: AsyncConnection, shares: str, limits: Mapping[str, ScalingLimits], before: str
) -> None:
    """Refuse models that cannot share hosts with these `limits`. `before`: what was shared before.

    Raises InvalidRequest, NotFound and Conflict.
    """
    catalog = await read_catalog(connection)
    for name in models_of(shares):
        known = limits.get(name, NO_LIMITS)
        if shares != before:
            await scaled_model(connection, name)
        if known.shares not in ("", shares, before):
            raise InvalidRequest(
                f"{name!r} shares hosts as {known.shares!r}; end that first, with shares {NONE} for {name!r}",
                param="shares",
            )
        if known.profile:
            raise InvalidRequest(
                f"{name!r} has the profile {known.profile!r}, and a shared host takes the first that fits; set the "
                f"profile of {name!r} to {FIRST_FIT} first",
                param="profile",
            )
        for kind in known.host_kinds:
            shared_on(catalog, shares, kind)


async def _share_with_others(
    connection: AsyncConnection,
    actor: Actor,
    model: str,
    stored: dict[str, ScalingLimits],
    shares: str,
    reason: str | None,
) -> None:
    """Write what a model shares for the others of its hosts, and end it for those that are left out."""
    earlier = models_of(stored.get(model, NO_LIMITS).shares)
    for name in dict.fromkeys((*models_of(shares), *earlier)):
        limits = stored.get(name, NO_LIMITS)
        now = msgspec.structs.replace(limits, shares=shares if name in models_of(shares) else "")
        if name != model and now != limits:
            await _store(connection, name, now)
            after = _view(name, {name: now})
            await record_change(
                connection, actor, name, "model.set_scaling", _view(name, stored), after, reason
            )


async def scaled_model(connection: AsyncConnection, name: str) -> CatalogModel:
    """The catalog's entry of an offered model. Raises NotFound, and Conflict for those that are not scaled."""
    row = offered(await read_models(connection), name)
    known = (await read_catalog(connection)).models.get(name) if row.spec is None else None
    if known is None:
        raise Conflict(
            f"{name!r} is served by external engines, which Penstock does not scale", param="model"
        )
    return known


def _region(text: str) -> RegionReplicas:
    """The limits of `REGION=MIN-MAX`. Raises InvalidRequest."""
    region, least, most = _least_and_most(text, "regions", "REGION=MIN-MAX, such as tor1=1-4")
    names = clean_places([region], "regions") or []
    return RegionReplicas(names[0], least, most)


def _kind(text: str) -> KindReplicas:
    """The limits of `KIND=MIN-MAX`. Raises InvalidRequest."""
    return KindReplicas(*_least_and_most(text, "kinds", "KIND=MIN-MAX, such as gpu-h200x8-1128gb=1-4"))


def _least_and_most(text: str, param: str, form: str) -> tuple[str, int, int]:
    name, _, numbers = text.partition("=")
    least, _, most = numbers.partition("-")
    if not all(each.isascii() and each.isdigit() and len(each) <= 6 for each in (least, most)):
        raise InvalidRequest(f"{param} has {text[:80]!r}; write {form}", param=param)
    return name, int(least), int(most)


def _profile(model: CatalogModel, name: str) -> str:
    return "" if name == FIRST_FIT else model.profile(name).name


def _check_kinds(model: CatalogModel, limits: ScalingLimits, prices: dict[str, int]) -> None:
    """Refuse kinds of hosts on which the model cannot run or whose price is not known."""
    catalog = load_catalog()
    for kind in limits.host_kinds:
        check_fit(catalog, model, kind, limits.profile, "host_kinds")
        if kind not in prices and catalog.hosts[kind].price is None:
            raise InvalidRequest(
                f"hosts of kind {kind!r} have no price, so none is created; "
                "set one with `penstock economics host-price set`",
                param="host_kinds",
            )


def parse_budget(budget: str, param: str) -> int | None:
    """Picodollars of an amount of dollars; None for NONE. Raises InvalidRequest."""
    if budget == NONE:
        return None
    try:
        return usd_to_pico(budget)
    except ValueError as error:
        raise InvalidRequest(f"{error}, or `{NONE}`", param=param) from None


def parse_mode(acting: str) -> Mode:
    """Raises InvalidRequest for what is no Mode."""
    try:
        return Mode(acting)
    except ValueError:
        raise InvalidRequest(
            f"acting is {acting[:20]!r}; it must be one of {', '.join(Mode)}", param="acting"
        ) from None


def _mode(acting: str) -> Mode | None:
    return None if acting == AS_PLATFORM else parse_mode(acting)


def _usd(pico: int | None) -> str | None:
    return None if pico is None else pico_to_usd(pico)


def _view(model: str, stored: dict[str, ScalingLimits]) -> ScalingView:
    limits = stored.get(model, NO_LIMITS)
    return ScalingView(
        model,
        limits.min_awake,
        limits.max_awake,
        _usd(limits.budget_usd_pico_per_hour),
        list(limits.host_kinds),
        "admin" if model in stored else "default",
        _usd(limits.budget_usd_pico_per_month),
        limits.profile,
        AS_PLATFORM if limits.acting is None else limits.acting.value,
        [f"{each.region}={each.min_awake}-{each.max_awake}" for each in limits.regions],
        [f"{each.kind}={each.min_awake}-{each.max_awake}" for each in limits.kinds],
        limits.shares,
    )
