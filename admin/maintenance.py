"""Maintenance of the platform, begun and ended by an admin. API processes follow within two seconds."""

from datetime import datetime

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor, require
from admin.audit import record
from admin.transactions import read, write
from core.db import Database
from core.errors import Conflict, InvalidRequest
from tenants.names import clean_reason
from tenants.roles import PLATFORM_ADMIN, READERS
from workers.maintenance import Maintenance, read_maintenance
from workers.tables import maintenance

MAX_NOTICE = 300
"""Characters of a notice."""


async def get_maintenance(database: Database, actor: Actor) -> Maintenance | None:
    """The maintenance in progress; None = there is none. Every role may read it."""
    async with read(database, actor, READERS, tenant_id=actor.tenant_id) as connection:
        return await read_maintenance(connection)


async def begin_maintenance(
    database: Database,
    actor: Actor,
    *,
    notice: str,
    expected_end: datetime | None = None,
    reason: str | None = None,
) -> Maintenance:
    """Refuse requests that begin from now on, with `notice`; open answers go on. Again: replace the notice and the end.

    Raises InvalidRequest for a notice that is empty or longer than MAX_NOTICE, and an end that has passed.
    """
    require(actor, PLATFORM_ADMIN)
    text = _clean_notice(notice)
    async with write(database, actor) as connection:
        now: datetime = (await connection.execute(select(func.clock_timestamp()))).scalar_one()
        if expected_end is not None and (expected_end.tzinfo is None or expected_end <= now):
            raise InvalidRequest(
                f"expected_end is {expected_end.isoformat()}; it must be in the future, with a time zone",
                param="expected_end",
            )
        before = await read_maintenance(connection)
        values = {"notice": text, "expected_end": expected_end}
        await connection.execute(
            insert(maintenance).values(values).on_conflict_do_update(index_elements=["id"], set_=values)
        )
        after = await read_maintenance(connection)
        if after is None:
            raise RuntimeError("the row that was just written is not there")
        await _record(connection, actor, "maintenance.begin", before, after, reason)
    return after


async def end_maintenance(database: Database, actor: Actor, *, reason: str | None = None) -> Maintenance:
    """Serve requests again; returns what has ended. Raises Conflict when there is no maintenance."""
    require(actor, PLATFORM_ADMIN)
    async with write(database, actor) as connection:
        before = await read_maintenance(connection)
        if before is None:
            raise Conflict("there is no maintenance to end; requests are served")
        await connection.execute(delete(maintenance))
        await _record(connection, actor, "maintenance.end", before, None, reason)
    return before


def _clean_notice(notice: str) -> str:
    """The notice as one line that ends like a sentence. Raises InvalidRequest."""
    text = " ".join(notice.split())
    if not text or len(text) > MAX_NOTICE or not text.isprintable():
        raise InvalidRequest(
            f"notice has {len(text)} characters; it must be 1 to {MAX_NOTICE} printable ones", param="notice"
        )
    return text if text[-1] in ".!?" else f"{text}."


async def _record(
    connection: AsyncConnection,
    actor: Actor,
    action: str,
    before: Maintenance | None,
    after: Maintenance | None,
    reason: str | None,
) -> None:
    await record(
        connection,
        actor,
        action,
        tenant_id=None,
        object_kind="maintenance",
        object_id="platform",
        reason=None if reason is None else clean_reason(reason),
        before=before,
        after=after,
    )
