"""Refused administrative acts: counted by minute, then moved to the audit log.

A loop of refused calls so makes one row of the audit log for each actor, act, code and minute.
"""

from uuid import UUID

import msgspec
from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from core.ids import uuid7
from tenants import audit
from tenants.scoping import platform_wide
from tenants.tables import denied_acts, tenants

ACTION = "access.denied"
"""The action of rows about refused acts in the audit log."""
BATCH = 1_000
_TEXT_MAX = 200
"""Characters of an act and of an address that are kept."""


class DeniedAct(msgspec.Struct, frozen=True):
    """An act that was refused. `tenant_id`: the organisation that it was about, which need not exist."""

    actor_kind: str
    actor_id: str
    actor_label: str
    act: str
    code: str
    tenant_id: UUID | None
    address: str


async def count(connection: AsyncConnection, denied: DeniedAct) -> None:
    """Count a refused act. Of several in a minute, organisation and address of the first are kept."""
    values = msgspec.structs.asdict(denied)
    for name in ("act", "address"):
        values[name] = values[name][:_TEXT_MAX]
    values["tenant_id"] = select(tenants.c.id).where(tenants.c.id == denied.tenant_id).scalar_subquery()
    await connection.execute(
        insert(denied_acts)
        .values(minute=func.date_trunc("minute", func.clock_timestamp()), **values)
        .on_conflict_do_update(
            constraint="pk_denied_acts",
            set_={"count": denied_acts.c.count + 1, "last_at": func.clock_timestamp()},
        )
    )


@platform_wide("the refused acts of all organisations are moved to the audit log")
async def move(connection: AsyncConnection) -> int:
    """Move up to BATCH counts of past minutes to the audit log; returns how many."""
    due = (
        select(*denied_acts.c)
        .where(denied_acts.c.minute < func.date_trunc("minute", func.clock_timestamp()))
        .order_by(denied_acts.c.minute, denied_acts.c.first_at)
        .limit(BATCH)
        .with_for_update(skip_locked=True)
    )
    rows = (await connection.execute(due)).all()
    for row in rows:
        await connection.execute(
            denied_acts.delete().where(
                denied_acts.c.actor_kind == row.actor_kind,
                denied_acts.c.actor_id == row.actor_id,
                denied_acts.c.act == row.act,
                denied_acts.c.code == row.code,
                denied_acts.c.minute == row.minute,
            )
        )
        await audit.insert_entry(
            connection,
            entry_id=uuid7(),
            actor_kind=row.actor_kind,
            actor_id=row.actor_id,
            actor_label=row.actor_label,
            action=ACTION,
            tenant_id=row.tenant_id,
            object_kind="act",
            object_id=row.act,
            reason=row.code,
            before=None,
            after={
                "count": row.count,
                "address": row.address,
                "first_at": row.first_at.isoformat(),
                "last_at": row.last_at.isoformat(),
            },
        )
    return len(rows)
