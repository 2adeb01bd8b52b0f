"""The approval limit and the four-eyes principle.

One person may do acts of up to the limit alone, added up by person and organisation over WINDOW; what exceeds it, or
has no bound, takes effect when another person approves it. People are compared by their ids: a mail address or a shell
user is a label.

This module stores requests and decisions. The code that owns an approval's `kind` carries it out, in the transaction of
the decision.
"""

from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Row, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.functions import func

from billing.ledger.tables import approvals
from core.errors import Conflict, NotFound
from core.ids import uuid7
from core.money import usd_to_pico
from tenants import shell_users
from tenants.scoping import platform_wide

MAX_LIST = 1000
"""Open approvals in one list at most."""
WINDOW = timedelta(days=30)
"""The time over which the acts of one person for one organisation add up, so that the limit cannot be split."""
DEFAULT_LIMIT_USD = Decimal(100)
"""The limit unless Settings.approval_limit_usd says otherwise, in US dollars."""

_SHELL = "shell:"
_SYSTEM = "system"


class Person(msgspec.Struct, frozen=True):
    """A person who requests or decides."""

    id: str
    """The user's id; `shell:NAME` for a shell user whom no person is mapped to, `system` for the platform itself."""
    label: str
    """A mail address or a name, for display."""

    @property
    def is_known(self) -> bool:
        """Whether it is certain which person this is."""
        return self.id != _SYSTEM and not self.id.startswith(_SHELL)


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
    """approved | rejected | within_limit (needed none); None = open"""


async def person(connection: AsyncConnection, kind: str, actor_id: str, label: str) -> Person:
    """The person behind an actor of `kind` user, token, cli or system; a shell user's by its mapping."""
    if kind != "cli":
        return Person(actor_id, label)
    return Person(await _resolved(connection, _SHELL + actor_id), label)


async def admit(
    connection: AsyncConnection,
    *,
    kind: str,
    by: Person,
    tenant_id: UUID | None,
    amount: int | None,
    facts: dict[str, Any],
    limit_usd: Decimal = DEFAULT_LIMIT_USD,
    source_id: UUID | None = None,
) -> Approval | None:
    """Whether `by` may do an act of `amount` picodollars (None = without a bound) alone, in the act's transaction.

    Returns None when it may, which counts the act; else the open approval that the act waits for. The platform itself
    needs none. `source_id` makes it idempotent: an act that was counted, approved or is waiting is not counted again.
    Raises Conflict when the same source is an act of another amount.
    """
    if amount == 0 or by.id == _SYSTEM:
        return None
    await lock(connection, by, tenant_id)
    source_id = source_id or uuid7()
    earlier = await _find(connection, kind, source_id)
    if earlier is not None:
        known = None if earlier.amount is None else int(earlier.amount)
        if (earlier.tenant_id, known) != (tenant_id, amount):
            raise Conflict(f"{source_id} is another act of the kind {kind} already")
        return _view(earlier) if earlier.decision is None else None
    limit = usd_to_pico(limit_usd)
    waits = amount is None or amount + await done_alone(connection, by, tenant_id) > limit
    values = {
        "id": uuid7(),
        "kind": kind,
        "tenant_id": tenant_id,
        "facts": facts,
        "requested_by": by.label,
        "requested_by_id": by.id,
        "amount": amount,
        "source_id": source_id,
    }
    if not waits:
        values |= {
            "decided_by": by.label,
            "decided_by_id": by.id,
            "decided_at": func.clock_timestamp(),
            "decision": "within_limit",
        }
    made = _view((await connection.execute(insert(approvals).values(values).returning(*approvals.c))).one())
    return made if waits else None


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
    """Request an approval that is needed whatever the amount. Returns its id."""
    approval_id = uuid7()
    await connection.execute(
        insert(approvals).values(
            id=approval_id,
            kind=kind,
            tenant_id=tenant_id,
            facts=facts,
            requested_by=by.label,
            requested_by_id=by.id,
            source_id=approval_id,
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
    await _require_another(connection, await _open(connection, approval_id), by)


async def _require_another(connection: AsyncConnection, row: Row[Any], by: Person) -> None:
    """Raise Conflict unless `by` is known to be another person than the requester."""
    if not by.is_known:
        raise Conflict(
            f"{by.label} is not mapped to a person, so it cannot approve: a person maps their shell user with "
            "`penstock users claim-shell`"
        )
    requester = await _resolved(connection, row.requested_by_id)
    if requester == by.id:
        raise Conflict(f"{row.requested_by} requested this, so another person must approve it")
    if not Person(requester, row.requested_by).is_known:
        raise Conflict(
            f"the shell user {row.requested_by} requested this and is not mapped to a person, who could be {by.label}: "
            "reject it, or map the shell user first (`penstock users claim-shell`)"
        )


async def _resolved(connection: AsyncConnection, person_id: str) -> str:
    """The id of the person whom a shell user is mapped to now; other ids, and a shell user without one, unchanged."""
    if not person_id.startswith(_SHELL):
        return person_id
    found = await shell_users.person_of(connection, person_id.removeprefix(_SHELL))
    return person_id if found is None else str(found)


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
        await connection.execute(select(approvals).where(approvals.c.id == approval_id).with_for_update())
    ).one_or_none()
    if row is None:
        raise NotFound(f"there is no approval with the id {approval_id}")
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
            )
        )
    ).one_or_none()


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
        requested_by_id=row.requested_by_id,
        requested_at=row.requested_at.isoformat(),
        decided_by=row.decided_by,
        decided_at=None if row.decided_at is None else row.decided_at.isoformat(),
        decision=row.decision,
    )
