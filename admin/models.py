"""Models and aliases: offered, described, listed. admin/model_life.py has their end."""

from collections.abc import Collection
from datetime import datetime
from typing import Literal

import msgspec
from sqlalchemy import insert, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor, require
from admin.audit import record
from admin.transactions import read, write
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound
from tenants.names import clean_name, is_model_name
from tenants.roles import PLATFORM_ADMIN, READERS
from workers.added_models import read_added, read_catalog
from workers.models import ModelRow, ModelSpec, read_models
from workers.tables import models

Origin = Literal["catalog", "added", "external", "alias"]
_NO_END = {"deprecated_at": None, "retires_at": None, "replacement": None, "redirected": False}


class ModelView(msgspec.Struct, frozen=True):
    """A model or an alias, for display."""

    name: str
    status: str
    """active | deprecated | retired, as it is now"""
    alias_of: str | None
    note: str | None
    created_at: datetime
    spec: ModelSpec | None = None
    """Of a model that the catalog does not have."""
    deprecated_at: datetime | None = None
    retires_at: datetime | None = None
    replacement: str | None = None
    """The model to use instead."""
    redirected: bool = False
    """Whether the replacement answers requests for it once it is retired."""
    origin: Origin = "catalog"
    """Where its description is from: the packaged catalog, an entry that an admin has added, or external engines."""


async def list_models(database: Database, actor: Actor) -> list[ModelView]:
    """Every model and alias by name, retired ones included. Every role may read them."""
    async with read(database, actor, READERS, tenant_id=actor.tenant_id) as connection:
        added = await read_added(connection)
        return [_view(row, added) for row in await read_models(connection)]


async def add_model(
    database: Database, actor: Actor, *, name: str, note: str | None = None, spec: ModelSpec | None = None
) -> ModelView:
    """Offer a model; one that is retired or deprecated, or a deprecated alias, is offered again, without an end.

    `spec` describes a model of external engines; without it the catalog does, or the retired model's own spec. Raises
    InvalidRequest when nothing describes the model or the spec is out of range, Conflict when the name is taken.
    """
    require(actor, PLATFORM_ADMIN)
    if spec is not None:
        _check_spec(name, spec)
    async with write(database, actor) as connection:
        await lock_models(connection)
        before = await find_model(connection, name)
        if spec is None and before is not None:
            spec = before.spec
        alias_of = None if before is None or before.status == "retired" else before.alias_of
        if spec is None and alias_of is None:
            name = (await read_catalog(connection)).model(clean_name(name, "name")).name
        if before is not None and (before.status == "active" or (alias_of is not None and spec is not None)):
            raise Conflict(f"there is a model {name!r} already ({before.status})", param="name")
        after = await store_model(connection, before, name, alias_of, note, spec)
        await record_model(connection, actor, "model.add", before, after)
    return after


async def describe_model(database: Database, actor: Actor, *, name: str, spec: ModelSpec) -> ModelView:
    """Change the description of a model that the catalog does not have; the same description changes nothing.

    Raises NotFound; Conflict when `name` is an alias; InvalidRequest when the spec is out of range.
    """
    require(actor, PLATFORM_ADMIN)
    _check_spec(name, spec)
    async with write(database, actor) as connection:
        await lock_models(connection)
        before = await require_model(connection, name)
        if before.alias_of is not None:
            raise Conflict(f"{name!r} is an alias of {before.alias_of!r}; retire it first", param="name")
        if before.spec == spec:
            return before
        await connection.execute(
            update(models).where(models.c.name == name).values(**msgspec.structs.asdict(spec))
        )
        after = msgspec.structs.replace(before, spec=spec)
        await record_model(connection, actor, "model.describe", before, after)
    return after


def _check_spec(name: str, spec: ModelSpec) -> None:
    """Raise InvalidRequest unless an external engine's model can be offered like this."""
    if not is_model_name(name):
        raise InvalidRequest(
            f"{name[:80]!r} cannot name a model: 1 to 200 letters, digits and ._/:@+~=- without blanks",
            param="name",
        )
    if not 1 < spec.context_len < 2**31:
        raise InvalidRequest(
            f"the context length must be above 1, not {spec.context_len}", param="context_len"
        )
    if not 1 <= spec.max_output_tokens <= spec.context_len:
        raise InvalidRequest(
            f"the longest answer must be between 1 and the context length, not {spec.max_output_tokens}",
            param="max_output_tokens",
        )


async def set_alias(database: Database, actor: Actor, *, name: str, target: str) -> ModelView:
    """Make `name` an alias of `target`; `name` is new, an alias, or a retired model.

    The same target changes nothing, and another one leaves the end of a deprecated alias as it is. Raises NotFound
    for an unknown target, Conflict when `name` is a live model or `target` an alias or retired.
    """
    require(actor, PLATFORM_ADMIN)
    name = clean_name(name, "name")
    async with write(database, actor) as connection:
        await lock_models(connection)
        aim = await require_model(connection, target)
        if aim.alias_of is not None or aim.status == "retired":
            state = f"an alias of {aim.alias_of!r}" if aim.alias_of else "retired"
            raise Conflict(f"{target!r} is {state}; an alias must stand for a live model", param="target")
        before = await find_model(connection, name)
        live = before is not None and before.status != "retired"
        if before is not None and live and before.alias_of is None:
            raise Conflict(
                f"{name!r} is a live model; retire it before its name can stand for another", param="name"
            )
        if before is not None and live and before.alias_of == aim.name:
            return before
        if any(row.alias_of == name for row in await read_models(connection)):
            raise Conflict(f"{name!r} has aliases of its own; point them elsewhere first", param="name")
        if live:
            await connection.execute(update(models).where(models.c.name == name).values(alias_of=aim.name))
            after = await require_model(connection, name)
        else:
            after = await store_model(connection, before, name, aim.name, None)
        await record_model(connection, actor, "model.alias", before, after)
    return after


async def lock_models(connection: AsyncConnection) -> None:
    """Let no other act change models until the transaction ends: what one has checked must hold when it commits."""
    await connection.execute(text("LOCK TABLE models IN SHARE ROW EXCLUSIVE MODE"))


async def store_model(
    connection: AsyncConnection,
    before: ModelView | None,
    name: str,
    alias_of: str | None,
    note: str | None,
    spec: ModelSpec | None = None,
) -> ModelView:
    """Write an active model or alias, in place of `before`. Raises Conflict when another has taken the name."""
    described = dict.fromkeys(ModelSpec.__struct_fields__) if spec is None else msgspec.structs.asdict(spec)
    values = {"status": "active", "alias_of": alias_of, "note": note, **_NO_END, **described}
    if before is None:
        try:
            await connection.execute(insert(models).values(name=name, **values))
        except IntegrityError:
            raise Conflict(f"there is a model {name!r} already", param="name") from None
    else:
        await connection.execute(update(models).where(models.c.name == name).values(values))
    return await require_model(connection, name)


async def find_model(connection: AsyncConnection, name: str) -> ModelView | None:
    """The model or alias `name`; None when there is none."""
    found = [row for row in await read_models(connection) if row.name == name]
    return _view(found[0], await read_added(connection)) if found else None


async def require_model(connection: AsyncConnection, name: str) -> ModelView:
    """The model or alias `name`. Raises NotFound."""
    found = await find_model(connection, name)
    if found is None:
        raise NotFound(f"there is no model {name!r}; `penstock models list` shows them", param="name")
    return found


async def record_model(
    connection: AsyncConnection, actor: Actor, action: str, before: ModelView | None, after: ModelView
) -> None:
    """Write the audit row of a change of a model."""
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


def _view(row: ModelRow, added: Collection[str]) -> ModelView:
    origin: Origin = "added" if row.name in added else "catalog"
    if row.alias_of is not None or row.spec is not None:
        origin = "alias" if row.alias_of is not None else "external"
    view = msgspec.convert(row, ModelView, from_attributes=True)
    return msgspec.structs.replace(view, origin=origin)
