"""Stripe and payments: comparison, blocked sends, dunning, disputes, refunds, pending events."""

from collections.abc import Sequence
from datetime import date, datetime
from uuid import UUID

from admin import payments as admin_payments
from billing.ledger.months import month_name
from billing.payments.stripe_gateway import open_gateway
from billing.payments.stripe_reconciliation import Reconciliation
from billing.payments.views import BlockedView, DisputeView, EventView, RefundView
from console.components.base import Text, box, card, description_list, notice
from console.components.dialogs import confirm, secondary
from console.components.flash import reload_with
from console.components.table import Column, Row, actions_cell, cell, data_table
from console.deps import Console
from console.format import Formatted, count, moment, money, short_id, words
from console.viewer import Viewer, toast_ok

ROWS = 200
"""Rows of each list, the newest first; the command line reaches further back."""
MAX_DIFFERENCES = 20
"""Differences of a comparison that are listed on the page."""
DUNNING_TONES = {"current": "ok", "past_due": "warn", "suspended": "bad"}
_DISPUTE_TONES = {"won": "ok", "lost": "bad", "warning_closed": "ok"}
_REFUND_TONES = {"succeeded": "ok", "failed": "bad", "canceled": "idle"}


async def collection_panel(console: Console, viewer: Viewer, month: date, tenants: dict[UUID, str]) -> None:
    """Draw the state of payments and of the exchange with Stripe."""
    await _comparison(console, viewer, month)
    await _blocked(console, viewer, tenants)
    await _dunning(console, viewer)
    await _disputes(console, viewer, tenants)
    await _refunds(console, viewer, tenants)
    await _events(console, viewer)


async def _comparison(console: Console, viewer: Viewer, month: date) -> None:
    """Draw the month's newest comparison, with a button that runs another."""
    name = month_name(month)
    known = await admin_payments.list_comparisons(console.database, viewer.actor, limit=100)
    found = next((one for one in known if one.month == month), None)

    async def compare() -> None:
        button.disable()
        try:
            async with open_gateway(console.settings) as gateway:
                made = await admin_payments.compare(console.database, viewer.actor, gateway, month=month)
        finally:
            button.enable()
        reload_with("Stripe equals our books." if made.ok else f"{len(made.problems)} differences to Stripe.")

    async def sync() -> None:
        async with open_gateway(console.settings) as gateway:
            applied = await admin_payments.sync(console.database, viewer.actor, gateway)
        reload_with(f"{applied} missed events applied." if applied else "No event was missed.")

    with card(f"Stripe and our books, {name}", "Invoices, payments, cash and the meter.") as actions:
        with actions:
            button = secondary("Compare now", viewer.act(compare), icon="sync")
            secondary("Look for missed events", viewer.act(sync), icon="search")
        if found is None:
            notice("idle", "Not compared yet", f"{name} has not been compared with Stripe yet.")
        else:
            _shown(console, found)


def _shown(console: Console, found: Reconciliation) -> None:
    when = moment(found.at, console.clock.now())
    if found.ok:
        notice("ok", "Stripe equals our books", f"Compared {when.text}.")
    else:
        notice("bad", f"{len(found.problems)} differences to Stripe", f"Compared {when.text}.")
        with box("ul", "plain-list"):
            for problem in found.problems[:MAX_DIFFERENCES]:
                Text("li", problem)
            if len(found.problems) > MAX_DIFFERENCES:
                Text("li", f"and {len(found.problems) - MAX_DIFFERENCES} more", "muted")
    description_list(
        [
            ("Invoices", Formatted(str(found.invoices))),
            ("Invoiced", money(found.invoiced_usd)),
            ("Paid", money(found.paid_usd)),
            ("Cash movements", count(found.movements)),
            ("Metered tokens", count(found.metered_tokens)),
        ]
    )


async def _blocked(console: Console, viewer: Viewer, tenants: dict[UUID, str]) -> None:
    """Draw the objects that could not be sent to Stripe, with a button that retries."""
    found = await admin_payments.list_blocked(console.database, viewer.actor)
    by_id = {str(one.object_id): one for one in found}

    async def again(_: str, row: str) -> None:
        one = by_id[row]
        reason = await confirm(
            viewer,
            f"Send this {words(one.kind)} again?",
            "It is sent to Stripe once more, with the same identity: nothing is charged twice.",
            "Send again",
        )
        if reason is None:
            return
        await admin_payments.send_again(
            console.database, viewer.actor, kind=one.kind, object_id=one.object_id, reason=reason
        )
        toast_ok("It is on its way; the list shows it until Stripe took it.")

    if found:
        notice("bad", f"{len(found)} not taken by Stripe", "Mend the cause below, then send again.")
    with card("Blocked", "Invoices and credit notes that Stripe refused.", flush=True):
        data_table(
            (
                Column("object", "What"),
                Column("tenant", "Tenant"),
                Column("error", "Why", sortable=False),
                Column("at", "Since", numeric=True),
                Column("acts", ""),
            ),
            blocked_rows(found, tenants, console.clock.now()),
            label="Blocked",
            nothing="Nothing is blocked.",
            on_action=viewer.act(again),
        )


def blocked_rows(found: Sequence[BlockedView], tenants: dict[UUID, str], now: datetime) -> list[Row]:
    """Table rows of objects that could not be sent."""
    return [
        {
            "id": str(one.object_id),
            "object": cell(
                short_id(one.object_id),
                sub=words(one.kind),
                href=f"/invoices/{one.object_id}" if one.kind == "invoice" else "",
            ),
            "tenant": cell(tenants.get(one.tenant_id, "–"), text=True),
            "error": cell(one.error or "–", wrap=True),
            "at": cell(moment(one.updated_at, now)),
            "acts": actions_cell([("again", "Send again", "")], f"{one.kind} {one.object_id}"),
        }
        for one in found
    ]


async def _dunning(console: Console, viewer: Viewer) -> None:
    """Draw payers, those with overdue invoices first."""
    found = await admin_payments.list_customers(console.database, viewer.actor, limit=1000)
    late = [one for one in found if one.dunning != "current"]
    now = console.clock.now()
    rows: list[Row] = [
        {
            "id": str(one.tenant_id),
            "tenant": cell(one.name, href=f"/tenants/{one.tenant_id}", text=True),
            "state": cell(words(one.dunning).capitalize(), tone=DUNNING_TONES.get(one.dunning, "idle")),
            "since": cell(moment(one.dunning_since, now)),
            "card": cell(one.card or "no card saved"),
        }
        for one in late
    ]
    with card("Dunning", f"{len(found)} payers, {len(late)} of them behind.", flush=True):
        data_table(
            (
                Column("tenant", "Tenant"),
                Column("state", "State"),
                Column("since", "Since", numeric=True),
                Column("card", "Card"),
            ),
            rows,
            label="Dunning",
            nothing="No payment is overdue.",
        )


async def _disputes(console: Console, viewer: Viewer, tenants: dict[UUID, str]) -> None:
    found = await admin_payments.list_disputes(console.database, viewer.actor, limit=ROWS)
    with card(
        "Disputes", "Evidence is given at Stripe; what happens to the credit follows by itself.", flush=True
    ):
        data_table(
            (
                Column("tenant", "Tenant"),
                Column("amount", "Amount", numeric=True),
                Column("clawed", "Credit taken back", numeric=True),
                Column("reason", "Reason", sortable=False),
                Column("status", "State"),
                Column("due", "Evidence due", numeric=True),
                Column("opened", "Opened", numeric=True),
            ),
            dispute_rows(found, tenants, console.clock.now()),
            label="Disputes",
            nothing="No payment was ever disputed.",
            sort_by="opened",
            descending=True,
        )


def dispute_rows(found: Sequence[DisputeView], tenants: dict[UUID, str], now: datetime) -> list[Row]:
    """Table rows of disputes."""
    return [
        {
            "id": one.id,
            "tenant": cell(tenants.get(one.tenant_id, "–"), sub=one.payment_intent, text=True),
            "amount": cell(money(one.amount_usd), sub=f"fee {money(one.fee_usd).text}"),
            "clawed": cell(money(one.clawed_back_usd)),
            "reason": cell(words(one.reason), wrap=True),
            "status": cell(words(one.status).capitalize(), tone=_DISPUTE_TONES.get(one.status, "warn")),
            "due": cell(moment(one.evidence_due_at, now)),
            "opened": cell(moment(one.opened_at, now)),
        }
        for one in found
    ]


async def _refunds(console: Console, viewer: Viewer, tenants: dict[UUID, str]) -> None:
    found = await admin_payments.list_refunds(console.database, viewer.actor, limit=ROWS)
    with card("Refunds", "Money that went or goes back.", flush=True):
        data_table(
            (
                Column("tenant", "Tenant"),
                Column("amount", "Amount", numeric=True),
                Column("reason", "Reason", sortable=False),
                Column("status", "State"),
                Column("by", "Asked by"),
                Column("at", "When", numeric=True),
            ),
            refund_rows(found, tenants, console.clock.now()),
            label="Refunds",
            nothing="Nothing was refunded yet.",
            sort_by="at",
            descending=True,
        )


def refund_rows(found: Sequence[RefundView], tenants: dict[UUID, str], now: datetime) -> list[Row]:
    """Table rows of refunds."""
    return [
        {
            "id": str(one.id),
            "tenant": cell(tenants.get(one.tenant_id, "–"), sub=one.payment_intent, text=True),
            "amount": cell(money(one.amount_usd)),
            "reason": cell(one.reason, sub=one.error or "", wrap=True),
            "status": cell(words(one.status).capitalize(), tone=_REFUND_TONES.get(one.status, "info")),
            "by": cell(one.created_by),
            "at": cell(moment(one.created_at, now)),
        }
        for one in found
    ]


async def _events(console: Console, viewer: Viewer) -> None:
    """Draw Stripe's events that are not applied yet."""
    found: list[EventView] = await admin_payments.list_events(
        console.database, viewer.actor, only_open=True, limit=ROWS
    )
    now = console.clock.now()
    rows: list[Row] = [
        {
            "id": one.id,
            "type": cell(one.type, sub=one.object_id, text=True),
            "attempts": cell(count(one.attempts)),
            "error": cell(one.error or "–", wrap=True),
            "at": cell(moment(one.created_at, now)),
        }
        for one in found
    ]
    with card(
        "Events that wait",
        "Applied by themselves within a minute; one that stays here needs a look.",
        flush=True,
    ):
        data_table(
            (
                Column("type", "Event"),
                Column("attempts", "Attempts", numeric=True),
                Column("error", "Error", sortable=False),
                Column("at", "When", numeric=True),
            ),
            rows,
            label="Events that wait",
            nothing="Every event of Stripe is applied.",
        )
