"""Acts under the approval limit: done at once, or stored as a request that another person approves.

Each act is a function `carry_out(connection, acting, tenant_id, facts)` of facts that JSON can hold. `under_limit`
calls it at once, or stores the facts; admin/decisions.py calls it with them when another person approves.
"""

from collections.abc import Awaitable, Callable
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor
from admin.audit import record
from admin.transactions import write_system
from billing.ledger import approvals
from billing.ledger.approvals import DEFAULT_LIMIT_USD, Approval, Person
from core.db import Database
from core.errors import WaitsForApproval

Facts = dict[str, Any]
T = TypeVar("T")


class Acting(msgspec.Struct, frozen=True):
    """Who carries an act out."""

    actor: Actor
    """Who acts now: the requester, or the person who approved."""
    requested_by: str
    """Label of the person whose act it is."""
    approved_by: str | None = None
    """Label of the second person; None when none was needed."""


CarryOut = Callable[[AsyncConnection, Acting, UUID | None, Facts], Awaitable[T]]
Amount = Callable[[AsyncConnection], Awaitable[int | None]]
"""Picodollars that an act moves, read in its transaction; None = no bound."""


def instant_fact(instant: datetime | None) -> str | None:
    """An instant as facts hold it."""
    return None if instant is None else instant.isoformat()


def parse_instant(fact: str | None) -> datetime | None:
    """The instant of a fact that `instant_fact` made."""
    return None if fact is None else datetime.fromisoformat(fact)


async def person_of(connection: AsyncConnection, actor: Actor) -> Person:
    """The person behind an actor."""
    return await approvals.person(connection, actor.kind, actor.id, actor.label)


async def under_limit(
    database: Database,
    actor: Actor,
    carry_out: CarryOut[T],
    *,
    kind: str,
    tenant_id: UUID | None,
    amount: int | Amount | None,
    facts: Facts,
    limit_usd: Decimal = DEFAULT_LIMIT_USD,
    source_id: UUID | None = None,
    warning_of: Callable[[T], str | None] | None = None,
) -> T:
    """Carry an act of `amount` picodollars out (None = no bound), or store it and raise WaitsForApproval.

    An act that would fail is refused at once with its own error. `source_id` makes the act idempotent. `warning_of`
    says of what the act's result warns, so that the requester learns it before the approval.
    """
    async with write_system(database) as connection:
        moved = await amount(connection) if callable(amount) else amount
        waiting = await approvals.admit(
            connection,
            kind=kind,
            by=await person_of(connection, actor),
            tenant_id=tenant_id,
            amount=moved,
            facts=facts,
            limit_usd=limit_usd,
            source_id=source_id,
        )
        acting = Acting(actor, actor.label)
        if waiting is None:
            return await carry_out(connection, acting, tenant_id, facts)
        attempt = await connection.begin_nested()
        planned = await carry_out(connection, acting, tenant_id, facts)
        await attempt.rollback()
        await record(
            connection,
            actor,
            f"{kind}.request",
            tenant_id=tenant_id,
            object_kind="approval",
            object_id=waiting.id,
            reason=facts.get("reason"),
            after=facts,
        )
    raise waits(waiting, warning=None if warning_of is None else warning_of(planned))


def waits(approval: Approval, *, warning: str | None = None) -> WaitsForApproval:
    """The error that tells that an act waits for another person, and of what the act warns."""
    return WaitsForApproval(
        f"this waits for the approval of another person, as the request {approval.id}; nothing is changed yet",
        details={"approval_id": str(approval.id), "kind": approval.kind}
        | ({} if warning is None else {"warning": warning}),
    )
