"""Adjustments and corrections: pending approvals, booked changes, and dry runs under another price book."""

from collections.abc import Sequence
from datetime import date, datetime
from uuid import UUID

from nicegui import ui

from admin import adjustments as admin_adjustments
from admin import corrections as admin_corrections
from billing.invoicing.correction_views import Correction
from billing.ledger.adjustments import Adjustment
from billing.ledger.months import month_name
from console.components.base import Text, box, card, notice
from console.components.dialogs import confirm, primary
from console.components.flash import reload_with
from console.components.table import Column, Row, actions_cell, cell, data_table
from console.deps import Console
from console.format import moment, money
from console.panels.approvals import OWN_REQUEST, approvals_panel, favour
from console.panels.rerate import diff_tables, open_correction_form
from console.viewer import Viewer

ROWS = 200
TONES = {"requested": "warn", "approved": "ok", "rejected": "idle", "expired": "idle"}


async def changes_panel(console: Console, viewer: Viewer, month: date, tenants: dict[UUID, str]) -> None:
    """Draw pending approvals, then the month's corrections and adjustments."""
    corrections = await admin_corrections.list_corrections(
        console.database, viewer.actor, month=month, limit=ROWS
    )
    booked = await admin_adjustments.list_adjustments(
        console.database, viewer.actor, month=month_name(month), limit=ROWS
    )
    await approvals_panel(console, viewer, tenants, show_correction)
    _corrections(console, viewer, month, corrections, tenants)
    _booked(console, month, booked, tenants)


def _corrections(
    console: Console, viewer: Viewer, month: date, found: Sequence[Correction], tenants: dict[UUID, str]
) -> None:
    """Draw the month's corrections, with the form of a new one."""

    async def ask() -> None:
        await open_correction_form(console, viewer, month, tenants)

    async def show(_: str, row: str) -> None:
        await show_correction(console, viewer, UUID(row), tenants)

    with card(
        f"Corrections of {month_name(month)}",
        "The month told again under other prices. Nothing is rewritten: adjustments and credit notes follow.",
        flush=True,
    ) as actions:
        with actions:
            primary("Re-rate", viewer.act(ask), icon="calculate")
        data_table(
            (
                Column("reason", "Correction", sortable=False),
                Column("status", "State"),
                Column("delta", "Change", numeric=True),
                Column("tenants", "Tenants", numeric=True),
                Column("by", "Asked by"),
                Column("at", "When", numeric=True),
                Column("acts", ""),
            ),
            correction_rows(found, console.clock.now()),
            label="Corrections",
            nothing="No correction of this month.",
            on_action=viewer.act(show),
        )


def correction_rows(found: Sequence[Correction], now: datetime) -> list[Row]:
    """Table rows of corrections."""
    return [
        {
            "id": str(one.id),
            "reason": cell(one.reason, sub="a reversal" if one.reverses else "", wrap=True),
            "status": cell(one.status.capitalize(), tone=TONES.get(one.status, "idle")),
            "delta": cell(money(one.delta_usd)),
            "tenants": cell(str(len(one.tenants))),
            "by": cell(one.requested_by, sub=f"decided by {one.decided_by}" if one.decided_by else ""),
            "at": cell(moment(one.requested_at, now)),
            "acts": actions_cell([("show", "Open", "")], f"correction {one.reason}"),
        }
        for one in found
    ]


async def show_correction(
    console: Console, viewer: Viewer, correction_id: UUID, tenants: dict[UUID, str]
) -> None:
    """Show one correction in a dialog, with its differences and the actions on it. Raises NotFound."""
    found, lines = await admin_corrections.show_correction(
        console.database, viewer.actor, correction_id=correction_id
    )
    own = found.requested_by == viewer.actor.label

    async def approve() -> None:
        await _decide(console, viewer, found, approve=True)

    async def reject() -> None:
        await _decide(console, viewer, found, approve=False)

    async def reverse() -> None:
        reason = await confirm(
            viewer,
            "Reverse this correction?",
            "A correction that mirrors it exactly is asked for; another person has to approve it.",
            "Ask for the reversal",
        )
        if reason is None:
            return
        await admin_corrections.request_reversal(
            console.database, viewer.actor, correction_id=correction_id, reason=reason
        )
        reload_with("The reversal waits for a second person.")

    with ui.dialog() as dialog, ui.card().classes("dialog wide").props("flat"):
        dialog.props["aria-label"] = "Correction"
        Text("h2", found.reason)
        Text("p", f"{found.status.capitalize()} · {found.month} · asked for by {found.requested_by}", "muted")
        diff_tables(found.delta_usd, found.tenants, lines, tenants)
        if found.status == "requested" and own:
            notice("info", "Waits for another person", OWN_REQUEST)
        with box("div", "actions"):
            ui.button("Close", on_click=dialog.close, color=None).props("flat no-caps").classes("plain")
            if found.status == "requested":
                no = ui.button("Reject", on_click=viewer.act(reject), color=None)
                no.props("flat no-caps").classes("plain")
                yes = primary("Approve", viewer.act(approve), icon="check")
                if own:
                    for button in (no, yes):
                        button.disable()
                        button.props["title"] = OWN_REQUEST
            elif found.status == "approved" and found.reverses is None and found.reversed_by is None:
                primary("Reverse", viewer.act(reverse), danger=True, icon="undo")
    dialog.on("hide", dialog.delete)
    dialog.open()


async def _decide(console: Console, viewer: Viewer, found: Correction, *, approve: bool) -> None:
    """Approve or reject a correction, once the viewer has given a reason."""
    effect = (
        f"{money(found.delta_usd).text} is booked over {len(found.tenants)} organisations as adjustments dated "
        "now, with credit notes on invoices and a notice to each customer. Only a reversal undoes it."
        if approve
        else "Nothing is booked."
    )
    reason = await confirm(
        viewer,
        "Approve this correction?" if approve else "Reject this correction?",
        effect,
        "Approve" if approve else "Reject",
        danger=not approve,
    )
    if reason is None:
        return
    await admin_corrections.decide_correction(
        console.database, viewer.actor, correction_id=found.id, approve=approve, reason=reason
    )
    reload_with("The correction is booked." if approve else "The correction is rejected.")


def _booked(console: Console, month: date, booked: Sequence[Adjustment], tenants: dict[UUID, str]) -> None:
    now = console.clock.now()
    rows: list[Row] = [
        {
            "id": str(one.id),
            "tenant": cell(tenants.get(one.tenant_id, "–"), href=f"/tenants/{one.tenant_id}", text=True),
            "amount": cell(money(one.amount_usd), sub=favour(one.amount_usd)),
            "reason": cell(one.reason, sub=f"corrects {one.corrects}" if one.corrects else "", wrap=True),
            "by": cell(one.created_by, sub=f"approved by {one.approved_by}" if one.approved_by else ""),
            "at": cell(moment(one.created_at, now)),
        }
        for one in booked
    ]
    with card(f"Adjustments booked in {month_name(month)}", f"The newest {ROWS}.", flush=True):
        data_table(
            (
                Column("tenant", "Tenant"),
                Column("amount", "Amount", numeric=True),
                Column("reason", "Reason", sortable=False),
                Column("by", "By"),
                Column("at", "When", numeric=True),
            ),
            rows,
            label="Adjustments",
            nothing="No adjustment was booked in this month.",
            sort_by="at",
            descending=True,
        )
