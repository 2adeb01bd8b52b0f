"""Acts above the approval limit that wait. Another person than the requester decides."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from uuid import UUID

from admin import decisions
from billing.invoicing.corrections import APPROVAL_KIND as CORRECTION
from billing.ledger.approvals import Approval
from console.components.base import card, notice
from console.components.dialogs import confirm
from console.components.flash import reload_with
from console.components.table import Cell, Column, Row, actions_cell, cell, data_table
from console.deps import Console
from console.format import Formatted, moment, money, words
from console.panels.approval_facts import Fact, approval_facts, in_one_line
from console.queries import all_accounts
from console.viewer import Viewer

OWN_REQUEST = "You asked for this: another person has to decide it."
ShowCorrection = Callable[[Console, Viewer, UUID, dict[UUID, str]], Awaitable[None]]
"""Opens the dialog of a correction, which contains the decision."""
_NAMES = {
    "money_rules.set": "Rules about money",
    "credit.grant": "Credit grant",
    "credit_limit.set": "Credit limit",
    "price.set": "Price",
    "price.end": "End of a price",
    "price.withdraw": "Withdrawal of a price",
    "contract.add": "Contract",
    "contract.end": "End of a contract",
    "invoice.write_off": "Write-off",
    "parked_record.write_off": "Write-off of a record",
    "period.close": "Close of a month",
    "person.confirm": "A person's password",
    "identity_provider.set": "The identity provider of the platform's people",
    "tenant.set_tier": "Tier of an organisation",
    "tenant.set_highest_tier": "Highest tier that requests may ask for",
}
"""Acts other than adjustments, refunds and corrections, by kind."""
_COLUMNS = (
    Column("what", "What"),
    Column("tenant", "Tenant"),
    Column("amount", "Amount", numeric=True),
    Column("reason", "Reason", sortable=False),
    Column("by", "Asked by"),
    Column("until", "Expires"),
    Column("acts", ""),
)


def favour(usd: str) -> str:
    """Whether an adjustment of `usd` credits or charges the customer, as text."""
    return "charges the customer" if usd.startswith("-") else "for the customer"


async def approvals_panel(
    console: Console, viewer: Viewer, tenants: dict[UUID, str], show: ShowCorrection
) -> None:
    """Draw the pending approvals with their actions; `show` opens a correction."""
    waiting, expired, accounts = await asyncio.gather(
        decisions.list_approvals(console.database, viewer.actor),
        decisions.list_approvals(console.database, viewer.actor, expired=True),
        all_accounts(console.database),
    )
    facts = {
        one.id: approval_facts(one, accounts.get(one.tenant_id) if one.tenant_id else None) for one in waiting
    }
    by_id = {str(one.id): one for one in waiting}

    async def act(name: str, row: str) -> None:
        one = by_id[row]
        if name == "open":
            await show(console, viewer, UUID(one.facts["correction_id"]), tenants)
        else:
            await _decide(console, viewer, one, facts[one.id], approve=name == "approve")

    if any(one.requested_by_id == viewer.actor.id for one in waiting):
        notice(
            "info",
            "Your own requests wait for another person",
            "A person cannot decide a request of their own.",
        )
    now = console.clock.now()
    with card("Waits for a second person", "Of every month.", flush=True):
        data_table(
            _COLUMNS,
            [_row(one, facts[one.id], viewer, tenants, now) for one in waiting],
            label="Waits for a second person",
            nothing="Nothing waits.",
            on_action=viewer.act(act),
        )
    if expired:
        with card("Expired", "Waited too long, in the last 30 days. It may be requested again.", flush=True):
            data_table(
                _COLUMNS[:-1],
                [
                    _row(one, approval_facts(one, None), viewer, tenants, now) | {"acts": cell("")}
                    for one in expired
                ],
                label="Expired",
                nothing="Nothing expired.",
            )


async def _decide(
    console: Console, viewer: Viewer, one: Approval, facts: list[Fact], *, approve: bool
) -> None:
    """Show the facts of an act, then approve or reject it."""
    reason = await confirm(
        viewer,
        f"{'Approve' if approve else 'Reject'}: {_name(one).lower()}?",
        _effect(one) if approve else "Nothing is changed. It may be requested again.",
        "Approve" if approve else "Reject",
        danger=not approve,
        facts=facts,
    )
    if reason is None:
        return
    await decisions.decide(console.database, viewer.actor, approval_id=one.id, approve=approve, reason=reason)
    reload_with(f"{_name(one)}: {'approved and done' if approve else 'rejected'}.")


def _name(one: Approval) -> str:
    return _NAMES.get(one.kind, words(one.kind).capitalize())


def _effect(one: Approval) -> str:
    """What an approval does, as text."""
    amount = money(one.facts.get("amount_usd")).text
    effects = {
        "adjustment": f"{amount} is booked at once, dated now. It cannot be taken back; "
        "a mistake takes another adjustment.",
        "refund": f"{amount} goes back to the payer's card, and the credit is taken. It cannot be called back.",
        "credit.grant": f"{amount} of credit can be spent at once.",
        "invoice.write_off": "What is open of the invoice is given up and booked as uncollectible.",
        "person.confirm": "This person may approve acts of money. Approve it when they say that they alone know it.",
        "identity_provider.set": "The operator of this provider can sign in as each person whom it names.",
        "period.close": "The month is checked again, its invoices are made, and it is frozen for good.",
    }
    return effects.get(one.kind, "It is done at once, for requests admitted from then on.")


def _row(one: Approval, facts: list[Fact], viewer: Viewer, tenants: dict[UUID, str], now: datetime) -> Row:
    amount = one.facts.get("amount_usd") or one.facts.get("delta_usd")
    tenant = tenants.get(one.tenant_id, "–") if one.tenant_id else "–" if one.kind in _NAMES else "several"
    asked = moment(one.requested_at, now)
    return {
        "id": str(one.id),
        "what": cell(_name(one), sub=in_one_line(facts), wrap=True),
        "tenant": cell(tenant, href=f"/tenants/{one.tenant_id}" if one.tenant_id else "", text=True),
        "amount": cell(money(amount), sub=favour(amount) if amount and one.kind == "adjustment" else ""),
        "reason": cell(one.facts.get("reason") or "–", wrap=True),
        "by": cell(one.requested_by, sub=asked.text),
        "until": cell(moment(one.expires_at, now)),
        "acts": _actions(one, viewer, tenant),
    }


def _actions(one: Approval, viewer: Viewer, tenant: str) -> Cell:
    subject = f"{_name(one).lower()} for {tenant}"
    if one.kind == CORRECTION:
        return actions_cell([("open", "Open", "")], subject)
    if one.requested_by_id == viewer.actor.id:
        return cell(Formatted("yours", OWN_REQUEST), tone="idle")
    return actions_cell([("approve", "Approve", ""), ("reject", "Reject", "bad")], subject)
