"""Pending approvals of adjustments, refunds and corrections. Another person than the requester decides."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from uuid import UUID

from admin import adjustments as admin_adjustments
from admin import payments as admin_payments
from billing.invoicing.corrections import APPROVAL_KIND as CORRECTION
from billing.ledger.approvals import Approval
from console.components.base import card, notice
from console.components.dialogs import confirm
from console.components.flash import reload_with
from console.components.table import Cell, Column, Row, actions_cell, cell, data_table
from console.deps import Console
from console.format import Formatted, moment, money, words
from console.viewer import Viewer

OWN_REQUEST = "You asked for this: another person has to decide it."
ShowCorrection = Callable[[Console, Viewer, UUID, dict[UUID, str]], Awaitable[None]]
"""Opens the dialog of a correction, which contains the decision."""
_COLUMNS = (
    Column("what", "What"),
    Column("tenant", "Tenant"),
    Column("amount", "Amount", numeric=True),
    Column("reason", "Reason", sortable=False),
    Column("by", "Asked by"),
    Column("acts", ""),
)


def favour(usd: str) -> str:
    """Whether an adjustment of `usd` credits or charges the customer, as text."""
    return "charges the customer" if usd.startswith("-") else "for the customer"


async def approvals_panel(
    console: Console, viewer: Viewer, tenants: dict[UUID, str], show: ShowCorrection
) -> None:
    """Draw the pending approvals with their actions; `show` opens a correction."""
    waiting = await admin_adjustments.list_approvals(console.database, viewer.actor)
    by_id = {str(one.id): one for one in waiting}

    async def act(name: str, row: str) -> None:
        one = by_id[row]
        if name == "open":
            await show(console, viewer, UUID(one.facts["correction_id"]), tenants)
        else:
            await _decide(console, viewer, one, approve=name == "approve")

    if any(one.requested_by == viewer.actor.label for one in waiting):
        notice(
            "info", "Your own requests wait for another person", "Nobody decides what he asked for himself."
        )
    now = console.clock.now()
    with card("Waits for a second person", "Of every month.", flush=True):
        data_table(
            _COLUMNS,
            [_row(one, viewer, tenants, now) for one in waiting],
            label="Waits for a second person",
            nothing="Nothing waits.",
            on_action=viewer.act(act),
        )


async def _decide(console: Console, viewer: Viewer, one: Approval, *, approve: bool) -> None:
    """Confirm, then approve or reject an adjustment or a refund."""
    amount = money(one.facts["amount_usd"]).text
    effects = {
        "adjustment": f"{amount} is booked at once, dated now. It cannot be taken back; "
        "a mistake takes another adjustment.",
        "refund": f"{amount} goes back to the payer's card, and the credit is taken. It cannot be called back.",
    }
    reason = await confirm(
        viewer,
        f"{'Approve' if approve else 'Reject'} this {words(one.kind)}?",
        effects.get(one.kind, "It is done at once.")
        if approve
        else "Nothing is booked. It may be asked again.",
        "Approve" if approve else "Reject",
        danger=not approve,
    )
    if reason is None:
        return
    decide = admin_payments.decide_refund if one.kind == "refund" else admin_adjustments.decide_adjustment
    await decide(console.database, viewer.actor, approval_id=one.id, approve=approve, reason=reason)
    reload_with(f"The {words(one.kind)} is {'booked' if approve else 'rejected'}.")


def _row(one: Approval, viewer: Viewer, tenants: dict[UUID, str], now: datetime) -> Row:
    amount = one.facts.get("amount_usd") or one.facts.get("delta_usd")
    tenant = tenants.get(one.tenant_id, "–") if one.tenant_id else "several"
    month = one.facts.get("corrects") or one.facts.get("month")
    asked = moment(one.requested_at, now)
    return {
        "id": str(one.id),
        "what": cell(words(one.kind).capitalize(), sub=f"corrects {month}" if month else ""),
        "tenant": cell(tenant, href=f"/tenants/{one.tenant_id}" if one.tenant_id else "", text=True),
        "amount": cell(money(amount), sub=favour(amount) if amount and one.kind == "adjustment" else ""),
        "reason": cell(one.facts.get("reason") or "–", wrap=True),
        "by": cell(one.requested_by, sub=asked.text),
        "acts": _actions(one, viewer, tenant),
    }


def _actions(one: Approval, viewer: Viewer, tenant: str) -> Cell:
    subject = f"{one.kind} for {tenant}"
    if one.kind == CORRECTION:
        return actions_cell([("open", "Open", "")], subject)
    if one.requested_by == viewer.actor.label:
        return cell(Formatted("yours", OWN_REQUEST), tone="idle")
    return actions_cell([("approve", "Approve", ""), ("reject", "Reject", "bad")], subject)
