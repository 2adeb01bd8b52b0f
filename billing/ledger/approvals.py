"""The approval limit and the four-eyes principle.

One person may do acts of up to the limit alone, added up by person and organisation over WINDOW; what exceeds it, or
has no bound, takes effect when another person approves it. People are compared by their ids: a mail address is a label.
Several people may share a shell user, so a command without a person's token has no known author: it does acts within
the limit, out of one sum for all such commands, and takes no part in an act of two people. A person whose credentials
another one gave could be that one, until a third confirms them: all that such a person requests waits, and an approval
takes two people who are confirmed.

A request that waited for the rules' `approval_days` expires, and may be requested again.

This module stores requests and decisions. The code that owns an approval's `kind` carries it out, in the transaction of
the decision.
"""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, Row, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.functions import func

from billing.ledger.money_rules import MoneyRules, read_rules
from billing.ledger.tables import approvals
from core.errors import Conflict, NotFound, PermissionDenied
from core.ids import uuid7
from tenants import members
from tenants.scoping import platform_wide

MAX_LIST = 1000
"""Open approvals in one list at most."""
WINDOW = timedelta(days=30)
"""The time over which the acts of one person for one organisation add up, so that the limit cannot be split."""

_SHELL = "shell"
_SYSTEM = "system"


_SECOND_PERSON = "second_person_needed"
"""The code of refusals that another person, or a known one, must act."""


class Person(msgspec.Struct, frozen=True):
    """A person who requests or decides."""

    id: str
    """The user's id; `shell` for a command without a person's token, `system` for the platform itself."""
    label: str
    """A mail address or a name, for display."""

    @property
    def is_known(self) -> bool:
        """Whether it is certain which person this is."""
        return self.id not in (_SYSTEM, _SHELL)


class Approval(msgspec.Struct, frozen=True):
    """A request for approval and its decision."""

    id: UUID
    kind: str
    tenant_id: UUID | None
    facts: dict[str, Any]
    requested_by: str
    requested_by_id: str
    requested_at: str
    decided_by: str | None
    decided_at: str | None
    decision: str | None
    """approved | rejected | expired | within_limit (needed none); None = open"""
    expires_at: str | None
    """When an open request expires; None of an act that needed no approval."""


class Waiting(msgspec.Struct, frozen=True):
    """An act that waits for another person."""

    approval: Approval
    is_new: bool
    """False when an earlier, equal request waits already."""


def person(kind: str, actor_id: str, label: str) -> Person:
    """The person behind an actor of `kind` user, token, cli or system."""
    return Person(_SHELL if kind == "cli" else actor_id, label)


async def admit(
    connection: AsyncConnection,
    *,
    kind: str,
    by: Person,
    tenant_id: UUID | None,
    amount: int | None,
    facts: dict[str, Any],
    besides: int = 0,
    source_id: UUID | None = None,
) -> Waiting | None:
    """Whether `by` may do an act of `amount` picodollars (None = without a bound) alone, in the act's transaction.

    Returns None when it may, which counts the act; else the open approval that the act waits for: an earlier request
    of the same person with the same facts, or a new one. The platform itself needs none. `besides` are picodollars
    that count against the limit, too. `source_id` makes the act idempotent: one that was counted, approved or is
    waiting is not counted again.
    Raises Conflict when the same source is an act of another amount, PermissionDenied when it would wait and `by` is
    not known as a person.
    """
    if amount == 0 or by.id == _SYSTEM:
        return None
    await lock(connection, by, tenant_id)
    if source_id is not None:
        earlier = await _find(connection, kind, source_id)
        if earlier is not None:
            known = None if earlier.amount is None else int(earlier.amount)
            if (earlier.tenant_id, known) != (tenant_id, amount):
                raise Conflict(f"{source_id} is another act of the kind {kind} already")
            return Waiting(_view(earlier), is_new=False) if earlier.decision is None else None
    else:
        equal = await _find_equal(connection, kind, by, tenant_id, facts)
        if equal is not None:
            return Waiting(equal, is_new=False)
    rules = await read_rules(connection)
    waits = (
        amount is None
        or await _unconfirmed(connection, by)
        or amount + besides + await done_alone(connection, by, tenant_id) > rules.approval_limit
    )
    if waits:
        _require_known(by)
    values = {
        "id": uuid7(),
        "kind": kind,
        "tenant_id": tenant_id,
        "facts": facts,
        "requested_by": by.label,
        "requested_by_id": by.id,
        "amount": amount,
        "source_id": source_id or uuid7(),
    }
    if waits:
        values["expires_at"] = _expiry(rules)
    else:
        values |= {
            "decided_by": by.label,
            "decided_by_id": by.id,
            "decided_at": func.clock_timestamp(),
            "decision": "within_limit",
        }
    made = _view((await connection.execute(insert(approvals).values(values).returning(*approvals.c))).one())
    return Waiting(made, is_new=True) if waits else None


async def lock(connection: AsyncConnection, by: Person, tenant_id: UUID | None) -> None:
    """Let one act of a person for an organisation be decided at a time, before accounts are locked."""
    await connection.execute(
        text("SELECT pg_advisory_xact_lock(hashtextextended(:key, 0))"),
        {"key": f"approval limit {by.id} {tenant_id}"},
    )


@platform_wide("an act without an organisation, such as a list price, counts for the platform")
async def done_alone(connection: AsyncConnection, by: Person, tenant_id: UUID | None) -> int:
    """The picodollars that `by` has moved alone for an organisation (None = the platform) within WINDOW."""
    total = await connection.scalar(
        select(func.coalesce(func.sum(approvals.c.amount), 0)).where(
            approvals.c.decision == "within_limit",
            approvals.c.requested_by_id == by.id,
            approvals.c.tenant_id.is_not_distinct_from(tenant_id),
            approvals.c.requested_at > func.clock_timestamp() - WINDOW,
        )
    )
    return int(total or 0)


async def request(
    connection: AsyncConnection,
    *,
    kind: str,
    facts: dict[str, Any],
    by: Person,
    tenant_id: UUID | None = None,
) -> UUID:
    """Request an approval that is needed whatever the amount. Returns its id. Raises PermissionDenied as `admit`."""
    _require_known(by)
    approval_id = uuid7()
    rules = await read_rules(connection)
    await connection.execute(
        insert(approvals).values(
            id=approval_id,
            kind=kind,
            tenant_id=tenant_id,
            facts=facts,
            requested_by=by.label,
            requested_by_id=by.id,
            source_id=approval_id,
            expires_at=_expiry(rules),
        )
    )
    return approval_id


@platform_wide("approvals are found by their id; only the platform's roles may see the table")
async def decide(connection: AsyncConnection, approval_id: UUID, *, by: Person, approve: bool) -> Approval:
    """Approve or reject an open request. The requesting person may reject (withdraw) it, but not approve it.

    Raises NotFound; Conflict when it is decided already, when `by` would approve a request of their own, or when it is
    not certain that both are different people.
    """
    if approve:
        await check_decidable(connection, approval_id, by=by)
    else:
        await _open(connection, approval_id)
    decided = await connection.execute(
        update(approvals)
        .where(approvals.c.id == approval_id)
        .values(
            decided_by=by.label,
            decided_by_id=by.id,
            decided_at=func.clock_timestamp(),
            decision="approved" if approve else "rejected",
        )
        .returning(*approvals.c)
    )
    return _view(decided.one())


async def check_decidable(connection: AsyncConnection, approval_id: UUID, *, by: Person) -> None:
    """Raise as `decide` unless `by` may approve an open request now; it stays locked until the transaction ends."""
    row = await _open(connection, approval_id)
    if row.is_due:
        raise Conflict(f"this waited too long and expired at {row.expires_at.isoformat()}: request it again")
    requester = Person(row.requested_by_id, row.requested_by)
    _require_known(by)
    if row.requested_by_id == by.id:
        raise Conflict(
            f"{row.requested_by} requested this, so another person must approve it", code=_SECOND_PERSON
        )
    if not requester.is_known:
        raise Conflict(
            f"{row.requested_by} requested this in a shell without a token, and could be {by.label}: reject it, and "
            "request it again with a token",
            code=_SECOND_PERSON,
        )
    for one in (by, requester):
        if await _unconfirmed(connection, one):
            raise Conflict(
                f"another person gave {one.label} a password, and could be {one.label}: a third person must approve "
                "that first (a request of the kind person.confirm)",
                code=_SECOND_PERSON,
            )


async def _unconfirmed(connection: AsyncConnection, one: Person) -> bool:
    """Whether another person gave this person's credentials and a third has not confirmed them."""
    return one.is_known and await members.unconfirmed_change(connection, UUID(one.id)) is not None


def _expiry(rules: MoneyRules) -> ColumnElement[datetime]:
    """When a request of now expires."""
    return func.clock_timestamp() + timedelta(days=rules.approval_days)


def _require_known(by: Person) -> None:
    """Raise PermissionDenied unless it is certain which person acts."""
    if not by.is_known:
        raise PermissionDenied(
            f"this takes two people, and the shell user {by.label} may stand for several: set PENSTOCK_ADMIN_TOKEN to "
            "a token of your own, which `penstock users token` makes",
            code=_SECOND_PERSON,
        )


@platform_wide("requests of every organisation expire")
async def expire(connection: AsyncConnection, *, by: Person, batch: int = 100) -> list[Approval]:
    """Mark at most `batch` requests that waited too long as expired, `by` the platform. Returns them."""
    due = (
        select(approvals.c.id)
        .where(approvals.c.decision.is_(None), approvals.c.expires_at <= func.clock_timestamp())
        .order_by(approvals.c.expires_at)
        .limit(batch)
        .with_for_update(skip_locked=True)
    )
    expired = await connection.execute(
        update(approvals)
        .where(approvals.c.id.in_(due.scalar_subquery()))
        .values(
            decided_by=by.label, decided_by_id=by.id, decided_at=func.clock_timestamp(), decision="expired"
        )
        .returning(*approvals.c)
    )
    return [_view(row) for row in expired]


@platform_wide("approvals are found by their id; only the platform's roles may see the table")
async def get(connection: AsyncConnection, approval_id: UUID) -> Approval:
    """One approval. Raises NotFound."""
    row = (await connection.execute(select(approvals).where(approvals.c.id == approval_id))).one_or_none()
    if row is None:
        raise NotFound(f"there is no approval with the id {approval_id}")
    return _view(row)


@platform_wide("approvals are found by their id; only the platform's roles may see the table")
async def _open(connection: AsyncConnection, approval_id: UUID) -> Row[Any]:
    """A request that is not decided, locked. Raises NotFound, Conflict."""
    row = (
        await connection.execute(
            select(approvals)
            .add_columns((approvals.c.expires_at <= func.clock_timestamp()).label("is_due"))
            .where(approvals.c.id == approval_id)
            .with_for_update()
        )
    ).one_or_none()
    if row is None:
        raise NotFound(f"there is no approval with the id {approval_id}")
    if row.decision == "expired":
        raise Conflict(f"this waited too long and expired at {row.expires_at.isoformat()}: request it again")
    if row.decision is not None:
        raise Conflict(f"this was {row.decision} by {row.decided_by} already")
    return row


@platform_wide("an act is found by its source")
async def _find(connection: AsyncConnection, kind: str, source_id: UUID) -> Row[Any] | None:
    return (
        await connection.execute(
            select(approvals).where(
                approvals.c.source_id == source_id,
                approvals.c.kind == kind,
                approvals.c.decision.is_distinct_from("rejected"),
                approvals.c.decision.is_distinct_from("expired"),
            )
        )
    ).one_or_none()


@platform_wide("an act without an organisation, such as a list price, is the platform's")
async def _find_equal(
    connection: AsyncConnection, kind: str, by: Person, tenant_id: UUID | None, facts: dict[str, Any]
) -> Approval | None:
    """An open request of `by` for the same act."""
    row = (
        await connection.execute(
            select(approvals)
            .where(
                approvals.c.decision.is_(None),
                approvals.c.kind == kind,
                approvals.c.requested_by_id == by.id,
                approvals.c.tenant_id.is_not_distinct_from(tenant_id),
                approvals.c.facts == facts,
            )
            .order_by(approvals.c.requested_at)
            .limit(1)
        )
    ).one_or_none()
    return None if row is None else _view(row)


async def list_open(
    connection: AsyncConnection,
    *,
    kind: str | None = None,
    tenant_id: UUID | None = None,
    expired: bool = False,
) -> list[Approval]:
    """Open requests, the oldest first, of one kind and tenant (None = any); with `expired`, those that expired within
    WINDOW.
    """
    if expired:
        query = select(approvals).where(
            approvals.c.decision == "expired", approvals.c.decided_at > func.clock_timestamp() - WINDOW
        )
    else:
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
        requested_by_id=row.requested_by_id,
        requested_at=row.requested_at.isoformat(),
        decided_by=row.decided_by,
        decided_at=None if row.decided_at is None else row.decided_at.isoformat(),
        decision=row.decision,
        expires_at=None if row.expires_at is None else row.expires_at.isoformat(),
    )
