"""The end of a model: deprecated with a date that its users are told, retired, replaced by another.

Every act is idempotent: one that changes nothing writes nothing and sends no notice.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor, require
from admin.models import ModelView, lock_models, record_model, require_model
from admin.transactions import now_of, read_scoped, write
from billing.notifications.notices import notify
from billing.pricing.prices import books_without_price
from billing.usage.period import parse_instant
from billing.usage.recent_models import models_used, organisations_that_used
from core.db import Database
from core.errors import Conflict, InvalidRequest
from tenants.names import clean_reason
from tenants.roles import PLATFORM_ADMIN
from workers.added_models import read_catalog
from workers.model_life import Deprecation, ending_of
from workers.models import described, lost_abilities, read_models
from workers.tables import models

USED_WITHIN = timedelta(days=30)
"""An organisation that used a model within this time is told of its end."""
NONE = "none"
"""Takes a date or a replacement away again."""


async def deprecate_model(
    database: Database,
    actor: Actor,
    *,
    name: str,
    retires_at: str | None = None,
    replacement: str | None = None,
    note: str | None = None,
) -> ModelView:
    """Deprecate a model or an alias: it still answers, until it retires by itself at `retires_at`, if that is given.

    `retires_at` is a date or instant in UTC, `replacement` a model to use instead; "none" takes either away, and what
    is None stays as it is. A replacement that is named here is only told, as is that of `replace_model` once the date
    is taken away. Raises NotFound; Conflict for a retired model and for a replacement that is none; InvalidRequest for
    a date that is past.
    """
    require(actor, PLATFORM_ADMIN)
    async with write(database, actor) as connection:
        before, users = await _lock(connection, name)
        if before.status == "retired":
            raise Conflict(f"{name!r} is retired; add it again before it can be deprecated", param="name")
        now = await now_of(connection)
        after = msgspec.structs.replace(
            _noted(before, note), status="deprecated", deprecated_at=before.deprecated_at or now
        )
        if retires_at is not None:
            date = None if retires_at == NONE else _future(retires_at, now)
            redirected = after.redirected and date is not None
            after = msgspec.structs.replace(after, retires_at=date, redirected=redirected)
        if replacement is not None:
            aim = None if replacement == NONE else replacement
            after = msgspec.structs.replace(after, replacement=aim, redirected=False)
        if (
            after != before
            and after.replacement is not None
            and (replacement is not None or after.redirected)
        ):
            await _check_replacement(connection, after)
        return await _store(connection, actor, "model.deprecate", before, after, users)


async def retire_model(database: Database, actor: Actor, *, name: str, note: str | None = None) -> ModelView:
    """Retire a model or an alias now: requests for it get 404 `model_retired`, also where another model answered them.

    Its usage stays in every report, and no replica is planned for it. Raises NotFound.
    """
    require(actor, PLATFORM_ADMIN)
    async with write(database, actor) as connection:
        before, users = await _lock(connection, name)
        after = msgspec.structs.replace(_noted(before, note), redirected=False)
        if before.status != "retired":
            after = _retired(after, await now_of(connection))
        return await _store(connection, actor, "model.retire", before, after, users)


async def replace_model(
    database: Database,
    actor: Actor,
    *,
    name: str,
    replacement: str,
    retires_at: str | None = None,
    note: str | None = None,
    accept_loss: bool = False,
) -> ModelView:
    """Retire a model now or at `retires_at`, and let `replacement` answer requests for it from then on, at its price.

    A model that is retired already keeps its date. Raises as `deprecate_model` does; Conflict for an alias, for a
    replacement without a price, and, unless `accept_loss`, for one that cannot do what the model can.
    """
    require(actor, PLATFORM_ADMIN)
    async with write(database, actor) as connection:
        before, users = await _lock(connection, name)
        if before.alias_of is not None:
            raise Conflict(
                f"{name!r} is an alias; let it stand for another model with `penstock models alias`",
                param="name",
            )
        now = await now_of(connection)
        after = msgspec.structs.replace(_noted(before, note), replacement=replacement, redirected=True)
        if before.status == "retired":
            if retires_at is not None:
                raise Conflict(f"{name!r} is retired already; leave the date out", param="retires_at")
        elif retires_at is None:
            after = _retired(after, now)
        else:
            after = msgspec.structs.replace(
                after,
                status="deprecated",
                deprecated_at=before.deprecated_at or now,
                retires_at=_future(retires_at, now),
            )
        if after != before:
            await _check_replacement(connection, after)
            if not accept_loss:
                await _check_abilities(connection, name, replacement)
        return await _store(connection, actor, "model.replace", before, after, users)


async def endings_of(database: Database, actor: Actor, *, tenant_id: UUID | None = None) -> list[Deprecation]:
    """What an organisation has to know: the ends of the models that it used within USED_WITHIN."""
    async with read_scoped(database, actor, tenant_id) as (connection, scope):
        rows = await read_models(connection)
        now = await now_of(connection)
        start = now - USED_WITHIN
        told = {
            row.name: ending
            for row in rows
            if row.alias_of is None
            and (ending := ending_of(row, now)) is not None
            and not (ending.retired and (ending.retires_at is None or ending.retires_at < start))
        }  # what was retired earlier has no usage since
        if not told or scope is None:
            return []
        used = await models_used(connection, scope, list(told), start, now)
        return [ending for name, ending in told.items() if name in used]


def ending_text(ending: Deprecation) -> str:
    """What happens to a model, when, and what to use instead, in sentences."""
    date = "" if ending.retires_at is None else f"{ending.retires_at:%Y-%m-%d %H:%M} UTC"
    if ending.retired:
        sentences = [f"{ending.model} was retired{f' at {date}' if date else ''}."]
    elif date:
        sentences = [f"{ending.model} is deprecated. It answers until {date}."]
    else:
        sentences = [f"{ending.model} is deprecated. It still answers; no date of its end is set."]
    if ending.redirected:
        when = "Requests for it are" if ending.retired else "From then on requests for it are"
        sentences.append(f"{when} answered by {ending.replacement}, at its price.")
    elif ending.retired or date:
        when = "Requests for it get" if ending.retired else "From then on requests for it get"
        sentences.append(f"{when} 404 model_retired.")
    if ending.replacement is not None and not (ending.retired and ending.redirected):
        sentences.append(f"Use {ending.replacement} instead.")
    return " ".join([*sentences, *([ending.note] if ending.note else [])])


def _noted(view: ModelView, note: str | None) -> ModelView:
    return view if note is None else msgspec.structs.replace(view, note=clean_reason(note, "note"))


def _retired(view: ModelView, now: datetime) -> ModelView:
    return msgspec.structs.replace(
        view, status="retired", deprecated_at=view.deprecated_at or now, retires_at=now
    )


def _future(date: str, now: datetime) -> datetime:
    instant = parse_instant(date, "retires_at")
    if instant <= now:
        raise InvalidRequest(
            f"retires_at is {instant:%Y-%m-%dT%H:%MZ}, which is past; `penstock models retire` retires a model now",
            param="retires_at",
        )
    return instant


async def _lock(connection: AsyncConnection, name: str) -> tuple[ModelView, list[UUID]]:
    """Lock the models; return one of them, and the organisations that used it lately. Raises NotFound.

    Usage is read before the lock, which other acts on models wait for.
    """
    now = await now_of(connection)
    users = await organisations_that_used(connection, name, now - USED_WITHIN, now)
    await lock_models(connection)
    return await require_model(connection, name), users


async def _store(
    connection: AsyncConnection,
    actor: Actor,
    action: str,
    before: ModelView,
    after: ModelView,
    users: Sequence[UUID],
) -> ModelView:
    """Write what has changed, with its audit row and the notices to `users`."""
    if after == before:
        return before
    values = {
        name: getattr(after, name)
        for name in ("status", "note", "deprecated_at", "retires_at", "replacement", "redirected")
    }
    await connection.execute(update(models).where(models.c.name == after.name).values(values))
    await record_model(connection, actor, action, before, after)
    if after.alias_of is None:
        await _tell(connection, after, users)
    return after


async def _check_replacement(connection: AsyncConnection, view: ModelView) -> None:
    """Raise NotFound or Conflict unless the replacement is another model that outlives the one it replaces.

    One that will answer requests must have a price in each price book that the model has one in.
    """
    aim = await require_model(connection, str(view.replacement))
    state = ""
    if aim.name in (view.name, view.alias_of):
        state = "the model itself"
    elif aim.alias_of is not None:
        state = f"an alias of {aim.alias_of!r}"
    elif aim.status == "retired":
        state = "retired"
    elif (
        view.status != "retired"
        and aim.retires_at is not None
        and (view.retires_at is None or aim.retires_at <= view.retires_at)
    ):
        state = f"to retire itself at {aim.retires_at:%Y-%m-%dT%H:%MZ}"
    if state:
        raise Conflict(
            f"{aim.name!r} is {state}; name a model as replacement that stays longer", param="replacement"
        )
    if view.redirected:
        unpriced = await books_without_price(connection, view.name, aim.name, view.retires_at)
        if unpriced:
            books = ", ".join(
                f"{tier}{f' of organisation {owner}' if owner else ''}" for tier, owner in unpriced
            )
            raise Conflict(
                f"{aim.name!r} would have no price when it answers for {view.name!r} ({books}), and those requests "
                "would be refused; set one with `penstock prices set` first",
                param="replacement",
            )


async def _check_abilities(connection: AsyncConnection, name: str, replacement: str) -> None:
    """Raise Conflict when requests that a model serves would be refused by the one that is to replace it."""
    catalog = await read_catalog(connection)
    found = {row.name: described(row, catalog) for row in await read_models(connection)}
    old, new = found[name], found[replacement]
    lost = lost_abilities(old, new) if old is not None and new is not None else []
    if lost:
        raise Conflict(
            f"{replacement!r} lacks what {name!r} has: {', '.join(lost)}. Requests that need it would be refused; name "
            "another model, or accept the loss (`--accept-loss`)",
            code="abilities_lost",
            param="replacement",
            details={"lost": lost},
        )


async def _tell(connection: AsyncConnection, view: ModelView, users: Sequence[UUID]) -> None:
    """Write a notice to each of the organisations that used the model lately."""
    retired = view.status == "retired"
    ending = Deprecation(
        view.name, view.deprecated_at, view.retires_at, view.replacement, view.redirected, view.note, retired
    )
    facts = msgspec.to_builtins(ending)
    for tenant_id in users:
        await notify(
            connection,
            tenant_id=tenant_id,
            kind="model.retired" if retired else "model.deprecated",
            subject=f"The model {view.name} {'was retired' if retired else 'is deprecated'}",
            body=ending_text(ending),
            facts=facts,
        )
