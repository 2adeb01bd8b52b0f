"""Acts under the approval limit: done at once, or stored as a request that another person approves.

Each act is a function `carry_out(connection, acting, tenant_id, facts)` of facts that JSON can hold. `under_limit`
calls it at once, or stores the facts; admin/decisions.py calls it with them when another person approves.
"""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor, system_actor
from admin.audit import record
from admin.transactions import write_system
from billing.invoicing.corrections import APPROVAL_KIND as CORRECTION
from billing.invoicing.corrections import expire_correction
from billing.ledger import approvals
from billing.ledger.approvals import Approval, Person
from core.db import Database
from core.errors import WaitsForApproval
from core.money import pico_to_usd

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


def person_of(actor: Actor) -> Person:
    """The person behind an actor."""
    return approvals.person(actor.kind, actor.id, actor.label)


async def admit(
    connection: AsyncConnection,
    actor: Actor,
    *,
    kind: str,
    tenant_id: UUID | None,
    amount: int | None,
    facts: Facts,
    besides: int = 0,
    source_id: UUID | None = None,
    action: str | None = None,
) -> Approval | None:
    """Count an act that the actor may do alone and return None, or return the request that the act waits for.

    A new request gets its audit row, `{action}.request` (None = the kind). Arguments as billing.ledger.approvals.admit.
    """
    await expire_waiting(connection)
    waiting = await approvals.admit(
        connection,
        kind=kind,
        by=person_of(actor),
        tenant_id=tenant_id,
        amount=amount,
        facts=facts,
        besides=besides,
        source_id=source_id,
    )
    if waiting is None:
        return None
    if waiting.is_new:
        await record(
            connection,
            actor,
            f"{action or kind}.request",
            tenant_id=tenant_id,
            object_kind="approval",
            object_id=waiting.approval.id,
            reason=facts.get("reason"),
            after=facts,
        )
    return waiting.approval


async def under_limit(
    database: Database,
    actor: Actor,
    carry_out: CarryOut[T],
    *,
    kind: str,
    tenant_id: UUID | None,
    amount: int | Amount | None,
    facts: Facts,
    source_id: UUID | None = None,
    warning_of: Callable[[T], str | None] | None = None,
) -> T:
    """Carry an act of `amount` picodollars out (None = no bound), or store it and raise WaitsForApproval.

    An amount that is read in the transaction becomes the fact `amount_usd`. An act that would fail is refused at once
    with its own error. `source_id` makes the act idempotent. `warning_of` says of what the act's result warns, so that
    the requester learns it before the approval.
    """
    async with write_system(database) as connection:
        moved = amount if not callable(amount) else None
        if callable(amount):
            await approvals.lock(connection, person_of(actor), tenant_id)
            moved = await amount(connection)
            facts = facts | ({"amount_usd": pico_to_usd(moved)} if moved else {})
        waiting = await admit(
            connection,
            actor,
            kind=kind,
            tenant_id=tenant_id,
            amount=moved,
            facts=facts,
            source_id=source_id,
        )
        acting = Acting(actor, actor.label)
        if waiting is None:
            return await carry_out(connection, acting, tenant_id, facts)
        attempt = await connection.begin_nested()
        planned = await carry_out(connection, acting, tenant_id, facts)
        await attempt.rollback()
    raise waits(waiting, warning=None if warning_of is None else warning_of(planned))


async def expire_waiting(connection: AsyncConnection) -> int:
    """Expire the requests that waited too long, each with its audit row; returns their number."""
    platform = system_actor("penstock.approvals")
    expired = await approvals.expire(connection, by=person_of(platform))
    for one in expired:
        if one.kind == CORRECTION:
            await expire_correction(connection, UUID(one.facts["correction_id"]), by=person_of(platform))
        await record(
            connection,
            platform,
            f"{one.kind}.expire",
            tenant_id=one.tenant_id,
            object_kind="approval",
            object_id=one.id,
            after=one.facts,
        )
    return len(expired)


async def expire_all_waiting(database: Database) -> int:
    """`expire_waiting` until nothing is due, as a job does."""
    total = 0
    while True:
        async with write_system(database) as connection:
            expired = await expire_waiting(connection)
        total += expired
        if not expired:
            return total


def waits(approval: Approval, *, warning: str | None = None) -> WaitsForApproval:
    """The error that tells that an act waits for another person, and of what the act warns."""
    return WaitsForApproval(
        f"this waits for the approval of another person, as the request {approval.id}; nothing is changed yet",
        details={"approval_id": str(approval.id), "kind": approval.kind}
        | ({} if warning is None else {"warning": warning}),
    )
