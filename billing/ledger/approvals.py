"""Approvals: a request of one person takes effect when another person approves it (four-eyes principle).

This module stores requests and decisions. The code that owns an approval's `kind` carries it out, in the transaction of
the decision.
"""

from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Row, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.functions import func

from billing.ledger.tables import approvals
from core.errors import Conflict, NotFound
from core.ids import uuid7
from tenants.scoping import platform_wide

MAX_LIST = 1000
"""Open approvals in one list at most."""


class Approval(msgspec.Struct, frozen=True):
    """A request for approval and its decision."""

    id: UUID
    kind: str
    tenant_id: UUID | None
    facts: dict[str, Any]
    requested_by: str
    requested_at: str
    decided_by: str | None
    decided_at: str | None
    decision: str | None
    """approved | rejected; None = open"""


async def request(
    connection: AsyncConnection,
    *,
    kind: str,
    facts: dict[str, Any],
    by: str,
    tenant_id: UUID | None = None,
) -> UUID:
    """Request an approval; `by` is the label of the requesting person. Returns the approval's id."""
    approval_id = uuid7()
    await connection.execute(
        insert(approvals).values(id=approval_id, kind=kind, tenant_id=tenant_id, facts=facts, requested_by=by)
    )
    return approval_id


@platform_wide("approvals are found by their id; only the platform's roles may see the table")
async def decide(connection: AsyncConnection, approval_id: UUID, *, by: str, approve: bool) -> Approval:
    """Approve or reject an open request. The requesting person may reject (withdraw) it, but not approve it.

    Raises NotFound; Conflict when it is decided already, or when `by` would approve a request of their own.
    """
    row = (
        await connection.execute(select(approvals).where(approvals.c.id == approval_id).with_for_update())
    ).one_or_none()
    if row is None:
        raise NotFound(f"there is no approval with the id {approval_id}")
    if row.decision is not None:
        raise Conflict(f"this was {row.decision} by {row.decided_by} already")
    if approve and row.requested_by == by:
        raise Conflict(f"{by} asked for this, so another person must approve it")
    decided = await connection.execute(
        update(approvals)
        .where(approvals.c.id == approval_id)
        .values(
            decided_by=by, decided_at=func.clock_timestamp(), decision="approved" if approve else "rejected"
        )
        .returning(*approvals.c)
    )
    return _view(decided.one())


async def list_open(
    connection: AsyncConnection, *, kind: str | None = None, tenant_id: UUID | None = None
) -> list[Approval]:
    """Open requests, the oldest first, of one kind and tenant (None = any)."""
    query = select(approvals).where(approvals.c.decision.is_(None))
    if kind is not None:
        query = query.where(approvals.c.kind == kind)
    if tenant_id is not None:
        query = query.where(approvals.c.tenant_id == tenant_id)
    rows = await connection.execute(query.order_by(approvals.c.requested_at, approvals.c.id).limit(MAX_LIST))
    return [_view(row) for row in rows]


def _view(row: Row[Any]) -> Approval:
    return Approval(
        id=row.id,
        kind=row.kind,
        tenant_id=row.tenant_id,
        facts=row.facts,
        requested_by=row.requested_by,
        requested_at=row.requested_at.isoformat(),
        decided_by=row.decided_by,
        decided_at=None if row.decided_at is None else row.decided_at.isoformat(),
        decision=row.decision,
    )
