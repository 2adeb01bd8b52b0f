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

from admin.actor import Actor, require
from admin.audit import record
from admin.transactions import write_system
from billing.ledger import accounts, approvals
from billing.ledger.approvals import Approval, Person
from core.db import Database
from core.errors import WaitsForApproval
from core.money import pico_to_usd, usd_to_pico
from tenants import members
from tenants.names import clean_reason
from tenants.roles import PLATFORM_ADMIN

LIMIT_SET = "approval_limit.set"
"""The kind of changes of the limit itself."""

Facts = dict[str, Any]
T = TypeVar("T")


class ApprovalLimit(msgspec.Struct, frozen=True):
    """What one person may do alone."""

    limit_usd: str
    """US dollars for one organisation in 30 days, all acts added up."""


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


async def get_limit(database: Database) -> ApprovalLimit:
    """The limit that holds."""
    async with database.read() as connection:
        return await _limit(connection)


async def store_first_limit(database: Database, actor: Actor, limit_usd: Decimal) -> ApprovalLimit:
    """Store the limit of a platform that has none, as a start does. Returns the one that holds."""
    async with write_system(database) as connection:
        if await approvals.store_first_limit(connection, usd_to_pico(limit_usd)):
            await _record_limit(connection, actor, None, "first start")
        return await _limit(connection)


async def set_limit(database: Database, actor: Actor, *, usd: str, reason: str) -> ApprovalLimit:
    """Change the approval limit; on a platform with two people another person must approve it.

    Raises InvalidRequest, PermissionDenied, WaitsForApproval.
    """
    require(actor, PLATFORM_ADMIN)
    amount = accounts.parse_usd(usd, "limit_usd")

    async def unbounded(connection: AsyncConnection) -> int | None:
        await members.lock_administrators(connection)
        return None if await members.has_two_people(connection) else 0

    return await under_limit(
        database,
        actor,
        apply_limit,
        kind=LIMIT_SET,
        tenant_id=None,
        amount=unbounded,
        facts={"limit_usd": pico_to_usd(amount), "reason": clean_reason(reason)},
    )


async def apply_limit(
    connection: AsyncConnection, acting: Acting, tenant_id: UUID | None, facts: Facts
) -> ApprovalLimit:
    """Carry out `set_limit`."""
    del tenant_id
    before = await _limit(connection)
    await approvals.store_limit(connection, usd_to_pico(facts["limit_usd"]))
    await _record_limit(connection, acting.actor, before, facts["reason"])
    return await _limit(connection)


async def _limit(connection: AsyncConnection) -> ApprovalLimit:
    return ApprovalLimit(pico_to_usd(await approvals.limit(connection)))


async def _record_limit(
    connection: AsyncConnection, actor: Actor, before: ApprovalLimit | None, reason: str
) -> None:
    await record(
        connection,
        actor,
        LIMIT_SET,
        tenant_id=None,
        object_kind="approval_limit",
        object_id="platform",
        reason=reason,
        before=before,
        after=await _limit(connection),
    )


def waits(approval: Approval, *, warning: str | None = None) -> WaitsForApproval:
    """The error that tells that an act waits for another person, and of what the act warns."""
    return WaitsForApproval(
        f"this waits for the approval of another person, as the request {approval.id}; nothing is changed yet",
        details={"approval_id": str(approval.id), "kind": approval.kind}
        | ({} if warning is None else {"warning": warning}),
    )
