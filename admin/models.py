"""The life cycle of models: offered, aliased, deprecated, retired."""

from datetime import datetime

import msgspec
from sqlalchemy import insert, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor, require
from admin.audit import record
from admin.transactions import read, write
from core.db import Database
from core.errors import Conflict, NotFound
from tenants.names import clean_name
from tenants.roles import PLATFORM_ADMIN, READERS
from workers.catalog import load_catalog
from workers.models import ModelRow, read_models
from workers.tables import models


class ModelView(msgspec.Struct, frozen=True):
    """A model or an alias, for display."""

    name: str
    status: str
    """active | deprecated | retired"""
    alias_of: str | None
    note: str | None
    created_at: datetime


async def list_models(database: Database, actor: Actor) -> list[ModelView]:
    """Every model and alias by name, retired ones included. Every role may read them."""
    async with read(database, actor, READERS, tenant_id=actor.tenant_id) as connection:
        return [_view(row) for row in await read_models(connection)]


async def add_model(database: Database, actor: Actor, *, name: str, note: str | None = None) -> ModelView:
    """Offer a model of the catalog; a retired one is offered again. Other names for it are aliases.

    Raises InvalidRequest when the catalog has no such model, Conflict when the name is taken.
    """
    require(actor, PLATFORM_ADMIN)
    name = load_catalog().model(clean_name(name, "name")).name
    async with write(database, actor) as connection:
        before = await _find(connection, name)
        if before is not None and before.status != "retired":
            raise Conflict(f"there is a model {name!r} already ({before.status})", param="name")
        after = await _store(connection, before, name, None, note)
        await _record(connection, actor, "model.add", before, after)
    return after


async def set_alias(database: Database, actor: Actor, *, name: str, target: str) -> ModelView:
    """Make `name` an alias of `target`; `name` is new, an alias, or a retired model.

    Raises NotFound for an unknown target, Conflict when `name` is a live model or `target` an alias or retired.
    """
    require(actor, PLATFORM_ADMIN)
    name = clean_name(name, "name")
    async with write(database, actor) as connection:
        aim = await _require_model(connection, target)
        if aim.alias_of is not None or aim.status == "retired":
            state = f"an alias of {aim.alias_of!r}" if aim.alias_of else "retired"
            raise Conflict(f"{target!r} is {state}; an alias must stand for a live model", param="target")
        before = await _find(connection, name)
        if before is not None and before.alias_of is None and before.status != "retired":
            raise Conflict(
                f"{name!r} is a live model; retire it before its name can stand for another", param="name"
            )
        if any(row.alias_of == name for row in await read_models(connection)):
            raise Conflict(f"{name!r} has aliases of its own; point them elsewhere first", param="name")
        after = await _store(connection, before, name, aim.name, None)
        await _record(connection, actor, "model.alias", before, after)
    return after


async def deprecate_model(
    database: Database, actor: Actor, *, name: str, note: str | None = None
) -> ModelView:
    """Deprecate a model: it still serves requests. `note` names its replacement. Raises NotFound, Conflict."""
    return await _set_status(database, actor, name, "deprecated", note)


async def retire_model(database: Database, actor: Actor, *, name: str, note: str | None = None) -> ModelView:
    """Retire a model or an alias: requests for it get 404. Raises NotFound."""
    return await _set_status(database, actor, name, "retired", note)


async def _set_status(
    database: Database, actor: Actor, name: str, status: str, note: str | None
) -> ModelView:
    require(actor, PLATFORM_ADMIN)
    async with write(database, actor) as connection:
        before = await _require_model(connection, name)
        if before.status == "retired" and status != "retired":
            raise Conflict(f"{name!r} is retired; add it again before it can be {status}", param="name")
        after = msgspec.structs.replace(before, status=status, note=before.note if note is None else note)
        values = {"status": after.status, "note": after.note}
        await connection.execute(update(models).where(models.c.name == name).values(values))
        await _record(
            connection, actor, f"model.{'retire' if status == 'retired' else 'deprecate'}", before, after
        )
    return after


async def _store(
    connection: AsyncConnection,
    before: ModelView | None,
    name: str,
    alias_of: str | None,
    note: str | None,
) -> ModelView:
    values = {"status": "active", "alias_of": alias_of, "note": note}
    if before is None:
        try:
            await connection.execute(insert(models).values(name=name, **values))
        except IntegrityError:
            raise Conflict(f"there is a model {name!r} already", param="name") from None
    else:
        await connection.execute(update(models).where(models.c.name == name).values(values))
    return await _require_model(connection, name)


async def _find(connection: AsyncConnection, name: str) -> ModelView | None:
    found = [row for row in await read_models(connection) if row.name == name]
    return _view(found[0]) if found else None


async def _require_model(connection: AsyncConnection, name: str) -> ModelView:
    found = await _find(connection, name)
    if found is None:
        raise NotFound(f"there is no model {name!r}; `penstock models list` shows them", param="name")
    return found


async def _record(
    connection: AsyncConnection, actor: Actor, action: str, before: ModelView | None, after: ModelView
) -> None:
    await record(
        connection,
        actor,
        action,
        tenant_id=None,
        object_kind="model",
        object_id=after.name,
        reason=after.note,
        before=before,
        after=after,
    )


def _view(row: ModelRow) -> ModelView:
    return msgspec.convert(row, ModelView, from_attributes=True)
