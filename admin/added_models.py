"""Models that admins add beside the packaged catalog: any that the engine serves, by the shape in its config.json."""

from datetime import date
from pathlib import Path

import msgspec
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor, require
from admin.model_life import retire_model
from admin.models import ModelView, find_model, lock_models, record_model, require_model, store_model
from admin.transactions import write
from core.db import Database
from core.errors import Conflict, InvalidRequest
from tenants.names import clean_reason, is_model_name
from tenants.roles import PLATFORM_ADMIN
from workers.added_models import encode_model, read_added
from workers.catalog import CatalogModel, load_catalog
from workers.engine_args import check_arguments
from workers.model_definition import Fit, NewModel, define
from workers.tables import added_models
from workers.wire import basis_of

DRY_RUN = "not added"
"""In place of the status of a model that was only checked."""
UNCHECKED = (
    "no engine's parser has checked the arguments: the first host that is to serve the model does, before it fetches "
    "weights, and where the parser refuses them the replica is failed with its words (penstock pools list)"
)
"""What is said of a model that was added without the check."""


class AddedView(msgspec.Struct, frozen=True):
    """A model that was added, how it fits, and where its figures start."""

    name: str
    status: str
    weights: str
    """Name on the hub, or a directory."""
    host_kind: str
    layout: str
    capabilities: list[str]
    fit: Fit
    figures: dict[str, float]
    """Of one engine, by the catalog's names."""
    basis: str
    """What the figures are: unvalidated until the scheduler has learnt them."""
    checked: bool
    """Whether the engine's own parser has taken the arguments."""
    warning: str | None
    """What is left to be found out; None = nothing."""
    command: str
    """The command line of its engine."""


async def add(
    database: Database,
    actor: Actor,
    *,
    new: NewModel,
    engine_env: Path,
    today: date,
    note: str | None = None,
    unchecked: bool = False,
    dry_run: bool = False,
) -> AddedView:
    """Store the entry of a model and offer it; its requests are refused until it has a price.

    A retired model that was added before gets the new entry. With `unchecked` the engine's parser is not asked; with
    `dry_run` all is checked and nothing stored. Raises InvalidRequest for a model that does not fit, and for arguments
    that the parser refuses; Conflict when the name is taken; Unavailable without an engine environment.
    """
    require(actor, PLATFORM_ADMIN)
    note = None if note is None else clean_reason(note)
    if not is_model_name(new.name):
        raise InvalidRequest(
            f"{new.name[:80]!r} cannot name a model: 1 to 200 letters, digits and ._/:@+~=- without blanks",
            param="name",
        )
    catalog = load_catalog()
    if new.name in catalog.models:
        raise Conflict(f"{new.name!r} is a model of the catalog; offer it without --host-kind", param="name")
    model, fit = define(catalog.hosts, new, today)
    async with database.read() as connection:
        await _find_retired(connection, new.name)  # before the parser is asked, which takes seconds
    if not unchecked:
        await check_arguments(model, engine_env)
    if dry_run:
        return _view(model, fit, DRY_RUN, checked=not unchecked)
    async with write(database, actor) as connection:
        await lock_models(connection)
        before = await _find_retired(connection, new.name)
        await store_model(connection, before, new.name, None, note)
        row = insert(added_models).values(name=new.name, definition=encode_model(model))
        await connection.execute(
            row.on_conflict_do_update(index_elements=["name"], set_={"definition": row.excluded.definition})
        )
        after = await require_model(connection, new.name)
        await record_model(connection, actor, "model.add", before, after)
    return _view(model, fit, after.status, checked=not unchecked)


async def _find_retired(connection: AsyncConnection, name: str) -> ModelView | None:
    """The retired model of a name; None = there is none. Raises Conflict for one that is offered."""
    found = await find_model(connection, name)
    if found is not None and found.status != "retired":
        raise Conflict(f"there is a model {name!r} already ({found.status}); remove it first", param="name")
    return found


async def remove(database: Database, actor: Actor, *, name: str, note: str | None = None) -> ModelView:
    """Retire a model that was added: its requests get 404. Its entry is kept, because past hours are shared out by it.

    Raises NotFound, and Conflict for a model that was not added.
    """
    require(actor, PLATFORM_ADMIN)
    async with database.system() as connection:
        await require_model(connection, name)
        if name not in await read_added(connection):
            raise Conflict(
                f"{name!r} was not added by an admin; `penstock models retire` takes it away", param="name"
            )
    return await retire_model(database, actor, name=name, note=note)


def _view(model: CatalogModel, fit: Fit, status: str, *, checked: bool) -> AddedView:
    profile = model.profile()
    return AddedView(
        name=model.name,
        status=status,
        weights=model.hub_id,
        host_kind=profile.host_kind,
        layout=profile.layout(profile.instances),
        capabilities=list(model.capabilities),
        fit=fit,
        figures={name: figure.value for name, figure in profile.figures.items()},
        basis=basis_of(profile.capacity),
        checked=checked,
        warning=None if checked else UNCHECKED,
        command=" ".join(profile.command_line(model, 8000)),
    )
