"""The latency targets of models by tier: the catalog's, and those that an admin sets in their place.

The scheduler reads changes within seconds (workers.targets).
"""

from typing import Literal

import msgspec
from sqlalchemy import delete
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor, require
from admin.model_settings import offered, record_change
from admin.transactions import read, write
from core.db import Database
from core.errors import InvalidRequest
from tenants.roles import PLATFORM_ADMIN, READERS
from workers.added_models import read_catalog
from workers.models import read_models
from workers.plan import EXTERNAL_TARGETS
from workers.service_level import TIERS, Tier, target_problem, with_stored
from workers.tables import model_targets
from workers.targets import read_targets

Source = Literal["admin", "catalog", "default"]


class TargetsView(msgspec.Struct, frozen=True):
    """The targets of one tier of a model."""

    model: str
    tier: Tier
    ttft_s: float
    """Seconds to the first token, on top of the prompt's own prefill."""
    tpot_s: float
    """Mean seconds per output token after the first."""
    source: Source
    """Who set them; `default` = the catalog has none for this tier."""


async def list_targets(database: Database, actor: Actor, *, model: str | None = None) -> list[TargetsView]:
    """The targets of every model that is offered, or of one, by tier. Every role may read them.

    Raises NotFound, and Conflict for an alias.
    """
    async with read(database, actor, READERS, tenant_id=actor.tenant_id) as connection:
        return await _views(connection, model)


async def set_targets(
    database: Database,
    actor: Actor,
    *,
    model: str,
    tier: Tier,
    ttft_s: float | None = None,
    tpot_s: float | None = None,
    reason: str | None = None,
) -> TargetsView:
    """Set the targets of one tier of a model, in seconds; a figure that is not given stays as it is.

    Raises NotFound, Conflict for an alias, InvalidRequest when a figure is out of range or none is given.
    """
    require(actor, PLATFORM_ADMIN)
    if ttft_s is None and tpot_s is None:
        raise InvalidRequest("give ttft_s, tpot_s or both: there is nothing to change", param="ttft_s")
    async with write(database, actor) as connection:
        before = await _view_of(connection, model, tier)
        first_s = before.ttft_s if ttft_s is None else ttft_s
        token_s = before.tpot_s if tpot_s is None else tpot_s
        if (problem := target_problem(first_s, token_s)) is not None:
            raise InvalidRequest(problem, param=problem.partition(" ")[0])
        row = insert(model_targets).values(model=model, tier=tier, ttft_s=first_s, tpot_s=token_s)
        await connection.execute(
            row.on_conflict_do_update(
                index_elements=["model", "tier"], set_={"ttft_s": first_s, "tpot_s": token_s}
            )
        )
        after = await _view_of(connection, model, tier)
        await record_change(connection, actor, model, "model.set_targets", before, after, reason)
    return after


async def reset_targets(
    database: Database, actor: Actor, *, model: str, tier: Tier, reason: str | None = None
) -> TargetsView:
    """Return one tier of a model to the catalog's targets. Raises NotFound, and Conflict for an alias."""
    require(actor, PLATFORM_ADMIN)
    async with write(database, actor) as connection:
        before = await _view_of(connection, model, tier)
        await connection.execute(
            delete(model_targets).where(model_targets.c.model == model, model_targets.c.tier == tier)
        )
        after = await _view_of(connection, model, tier)
        await record_change(connection, actor, model, "model.reset_targets", before, after, reason)
    return after


async def _views(connection: AsyncConnection, model: str | None) -> list[TargetsView]:
    rows = await read_models(connection)
    if model is None:
        rows = [row for row in rows if row.alias_of is None and row.status != "retired"]
    else:
        rows = [offered(rows, model)]
    stored, catalog = await read_targets(connection), await read_catalog(connection)
    views = []
    for row in rows:
        known = catalog.models.get(row.name) if row.spec is None else None
        own = stored.get(row.name, {})
        level = with_stored(EXTERNAL_TARGETS if known is None else known.service_level, own)
        for tier in TIERS:
            given = known is not None and tier in known.targets
            source: Source = "admin" if tier in own else "catalog" if given else "default"
            promised = level.of(tier)
            views.append(TargetsView(row.name, tier, promised.ttft_s, promised.tpot_s, source))
    return views


async def _view_of(connection: AsyncConnection, model: str, tier: Tier) -> TargetsView:
    return next(view for view in await _views(connection, model) if view.tier == tier)
