"""How long requests for a model wait while a replica wakes or its host is created. API processes follow in seconds."""

from typing import Literal

import msgspec
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor, require
from admin.model_settings import record_change
from admin.scaling import scaled_model
from admin.transactions import read, write
from core.db import Database
from core.errors import InvalidRequest
from tenants.roles import PLATFORM_ADMIN, READERS
from workers.added_models import read_catalog
from workers.models import read_models, wake_deadline_of
from workers.service_level import wake_deadline_problem
from workers.tables import models


class WakeDeadlineView(msgspec.Struct, frozen=True):
    """The longest wait of a model's requests."""

    model: str
    wake_deadline_s: float | None
    """Seconds from receipt; None = the setting PENSTOCK_WAKE_DEADLINE_S, by the request's tier."""
    source: Literal["admin", "catalog", "setting"]


async def list_wake_deadlines(
    database: Database, actor: Actor, *, model: str | None = None
) -> list[WakeDeadlineView]:
    """The deadlines of every offered model that Penstock scales, or of one. Every role of the platform may read them.

    Raises NotFound, and Conflict for an alias or the model of an external engine.
    """
    async with read(database, actor, READERS, tenant_id=actor.tenant_id) as connection:
        if model is not None:
            await scaled_model(connection, model)
        return [each for each in await _views(connection) if model in (None, each.model)]


async def set_wake_deadline(
    database: Database, actor: Actor, *, model: str, wake_deadline_s: float | None, reason: str | None = None
) -> WakeDeadlineView:
    """Set how long requests for a model wait while a replica wakes; None = as the catalog or the settings say.

    Raises NotFound, Conflict for an alias or the model of an external engine, InvalidRequest out of range.
    """
    require(actor, PLATFORM_ADMIN)
    if (problem := wake_deadline_problem(wake_deadline_s)) is not None:
        raise InvalidRequest(problem, param="wake_deadline_s")
    async with write(database, actor) as connection:
        await scaled_model(connection, model)
        before = await _view_of(connection, model)
        await connection.execute(
            update(models).where(models.c.name == model).values(wake_deadline_s=wake_deadline_s)
        )
        after = await _view_of(connection, model)
        await record_change(connection, actor, model, "model.set_wake_deadline", before, after, reason)
    return after


async def _views(connection: AsyncConnection) -> list[WakeDeadlineView]:
    catalog = await read_catalog(connection)
    views = []
    for row in await read_models(connection):
        entry = catalog.models.get(row.name)
        if row.alias_of is not None or row.status == "retired" or row.spec is not None or entry is None:
            continue
        seconds = wake_deadline_of(row, entry)
        source: Literal["admin", "catalog", "setting"] = "setting"
        if seconds is not None:
            source = "admin" if row.wake_deadline_s is not None else "catalog"
        views.append(WakeDeadlineView(row.name, seconds, source))
    return views


async def _view_of(connection: AsyncConnection, model: str) -> WakeDeadlineView:
    return next(each for each in await _views(connection) if each.model == model)
