"""Manual adjustments of customers' accounts; above a limit they need the approval of a second person."""

from datetime import date
from typing import Any
from uuid import UUID

import msgspec

from admin.actor import Actor, require
from admin.approval_limit import admit, person_of
from admin.audit import record
from admin.transactions import page_size, read, read_scoped, write_system
from billing.ledger import accounts, adjustments, approvals, months
from billing.ledger.adjustments import Adjustment
from billing.ledger.approvals import Approval
from core.db import Database
from core.errors import Conflict, InvalidRequest
from core.ids import uuid7
from core.money import pico_to_usd, usd_to_pico
from tenants.names import clean_reason
from tenants.roles import PLATFORM_ROLES

KIND = "adjustment"


class AdjustmentRequest(msgspec.Struct, frozen=True):
    """A requested adjustment and its state."""

    id: UUID
    """Id of the approval while the status is `waiting`, else of the adjustment."""
    tenant_id: UUID
    amount_usd: str
    """Above 0: in the customer's favour."""
    reason: str
    corrects: str | None
    requested_by: str
    status: str
    """booked | waiting | rejected"""
    decided_by: str | None


async def request_adjustment(
    database: Database,
    actor: Actor,
    *,
    tenant_id: UUID,
    amount_usd: str,
    reason: str,
    corrects: str | None = None,
    adjustment_id: UUID | None = None,
) -> AdjustmentRequest:
    """Adjust a customer's account by `amount_usd` US dollars (above 0 credits the customer, "-5" charges 5 dollars).

    It is booked at once while the absolute amounts that the person moved alone for the customer stay within the
    approval limit; else an approval is created. `corrects` is the corrected month, YYYY-MM.

    Raises InvalidRequest, NotFound, PermissionDenied.
    """
    require(actor, *PLATFORM_ROLES)
    reason = clean_reason(reason)
    amount = _signed(amount_usd)
    month = parse_month(corrects, "corrects")
    adjustment_id = adjustment_id or uuid7()
    facts = {
        "adjustment_id": str(adjustment_id),
        "amount_usd": pico_to_usd(amount),
        "reason": reason,
        "corrects": None if month is None else f"{month:%Y-%m}",
    }
    async with write_system(database) as connection:
        await accounts.get_account(connection, tenant_id)
        waiting = await admit(
            connection,
            actor,
            kind=KIND,
            tenant_id=tenant_id,
            amount=abs(amount),
            facts=facts,
            source_id=adjustment_id,
        )
        shown_id = adjustment_id if waiting is None else waiting.id
        is_new = False
        if waiting is None:
            is_new = await adjustments.adjust(
                connection,
                adjustment_id=adjustment_id,
                tenant_id=tenant_id,
                amount=amount,
                reason=reason,
                created_by=actor.label,
                corrects=month,
            )
        if is_new:
            await record(
                connection,
                actor,
                "adjustment.book",
                tenant_id=tenant_id,
                object_kind="adjustment",
                object_id=adjustment_id,
                reason=reason,
                after=facts,
            )
    return _request_view(shown_id, tenant_id, facts, actor.label, "waiting" if waiting else "booked", None)


async def decide_adjustment(
    database: Database, actor: Actor, *, approval_id: UUID, approve: bool, reason: str | None = None
) -> AdjustmentRequest:
    """Approve an adjustment, which books it, or reject it. The requester cannot approve it.

    Raises NotFound, Conflict when it is already decided or the actor's own, PermissionDenied.
    """
    require(actor, *PLATFORM_ROLES)
    async with write_system(database) as connection:
        by = person_of(actor)
        approval = await approvals.decide(connection, approval_id, by=by, approve=approve)
        if approval.kind != KIND or approval.tenant_id is None:
            raise Conflict(f"this is a request for a {approval.kind}, not for an adjustment")
        facts = approval.facts
        if approve:
            await adjustments.adjust(
                connection,
                adjustment_id=UUID(facts["adjustment_id"]),
                tenant_id=approval.tenant_id,
                amount=usd_to_pico(facts["amount_usd"]),
                reason=facts["reason"],
                created_by=approval.requested_by,
                corrects=parse_month(facts["corrects"], "corrects"),
                approved_by=actor.label,
            )
        await record(
            connection,
            actor,
            "adjustment.approve" if approve else "adjustment.reject",
            tenant_id=approval.tenant_id,
            object_kind="approval",
            object_id=approval_id,
            reason=None if reason is None else clean_reason(reason),
            after=facts,
        )
    shown_id = UUID(facts["adjustment_id"]) if approve else approval_id
    status = "booked" if approve else "rejected"
    return _request_view(shown_id, approval.tenant_id, facts, approval.requested_by, status, actor.label)


async def list_requests(
    database: Database, actor: Actor, *, tenant_id: UUID | None = None
) -> list[AdjustmentRequest]:
    """Adjustments that need an approval, the oldest first."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        waiting = await approvals.list_open(connection, kind=KIND, tenant_id=tenant_id)
    return [_pending_view(approval) for approval in waiting]


async def list_adjustments(
    database: Database,
    actor: Actor,
    *,
    tenant_id: UUID | None = None,
    month: str | None = None,
    limit: int = 100,
) -> list[Adjustment]:
    """Booked adjustments, the newest first; `month` (YYYY-MM) is that of the booking. A tenant role sees its own."""
    async with read_scoped(database, actor, tenant_id) as (connection, scope):
        return await adjustments.list_adjustments(
            connection, tenant_id=scope, month=parse_month(month, "month"), limit=page_size(limit)
        )


def parse_month(text: str | None, param: str) -> date | None:
    """The first day of a month written YYYY-MM, None for none. Raises InvalidRequest."""
    return None if text is None else months.parse_month(text, param)


def _signed(amount_usd: str) -> int:
    """Picodollars of an amount that may be below 0. Raises InvalidRequest."""
    negative = amount_usd.startswith("-")
    amount = accounts.parse_usd(amount_usd[1:] if negative else amount_usd, "amount_usd")
    if amount == 0:
        raise InvalidRequest("an adjustment of 0 changes nothing", param="amount_usd")
    return -amount if negative else amount


def _pending_view(approval: Approval) -> AdjustmentRequest:
    tenant_id = approval.tenant_id
    assert tenant_id is not None  # noqa: S101 - requests of this kind always name it
    return _request_view(approval.id, tenant_id, approval.facts, approval.requested_by, "waiting", None)


def _request_view(
    shown_id: UUID, tenant_id: UUID, facts: dict[str, Any], by: str, status: str, decided_by: str | None
) -> AdjustmentRequest:
    return AdjustmentRequest(
        id=shown_id,
        tenant_id=tenant_id,
        amount_usd=facts["amount_usd"],
        reason=facts["reason"],
        corrects=facts["corrects"],
        requested_by=by,
        status=status,
        decided_by=decided_by,
    )
