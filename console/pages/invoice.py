"""One invoice: its lines, the requests behind each line, credit notes, and the actions on it."""

from datetime import datetime
from decimal import Decimal
from uuid import UUID

from fastapi import Request
from nicegui import ui

from admin import invoices as admin_invoices
from billing.invoicing.views import CreditNoteView, InvoiceDetail, InvoiceView, LineView, TracePage
from console.components.base import Stat, Text, badge, box, card, description_list, page_head
from console.components.dialogs import confirm, secondary
from console.components.flash import reload_with
from console.components.table import Column, Row, actions_cell, cell, data_table
from console.deps import Console
from console.format import Formatted, count, moment, money, per_mtok, short_id, words
from console.panels.invoices import TONES
from console.viewer import Viewer

TRACE_ROWS = 100
"""Requests loaded at a time."""
_TRACED = ("usage", "late_usage")
_LINES = (
    Column("line", "Line", sortable=False),
    Column("tokens", "Tokens", numeric=True),
    Column("price", "Price per M", numeric=True),
    Column("exact", "Exact", numeric=True),
    Column("amount", "Amount", numeric=True),
    Column("acts", ""),
)
_NOTES = (
    Column("reason", "Reason", sortable=False),
    Column("amount", "Amount", numeric=True),
    Column("pays", "Goes to"),
    Column("status", "State"),
    Column("at", "When", numeric=True),
)
_TRACE = (
    Column("request", "Request"),
    Column("ended", "Ended"),
    Column("tokens", "Tokens", numeric=True),
    Column("cost", "Amount", numeric=True),
)
_PAYS = {"invoice": "what is open", "balance": "the customer's balance", "refund": "the card"}


async def build(console: Console, viewer: Viewer, request: Request) -> None:
    """Draw the invoice of the path. A tenant role finds only invoices of its own organisation. Raises NotFound."""
    detail = await admin_invoices.show_invoice(
        console.database, viewer.actor, ref=str(request.path_params["ref"])
    )
    invoice = detail.invoice
    back = f"/periods?tab=invoices&month={invoice.month}" if viewer.is_platform else "/billing"
    title = f"Invoice {invoice.number}" if invoice.number else f"Invoice {short_id(invoice.id).text}"
    with page_head(title, f"{invoice.tenant} · {invoice.month} · {invoice.kind}", crumb=("Billing", back)):
        badge(invoice.status.capitalize(), TONES.get(invoice.status, "idle"))
        if viewer.may_bill and invoice.status == "open":
            _acts(console, viewer, invoice)
    _numbers(console, viewer, invoice)
    _lines(console, viewer, detail)
    _credit_notes(console, detail)


def _acts(console: Console, viewer: Viewer, invoice: InvoiceView) -> None:
    ref = str(invoice.id)

    async def void() -> None:
        reason = await confirm(
            viewer,
            "Void this invoice?",
            "It is taken back, at Stripe too. Its amount is not lost: the next invoice of the customer carries it.",
            "Void invoice",
            danger=True,
        )
        if reason is not None:
            await admin_invoices.void_invoice(console.database, viewer.actor, ref=ref, reason=reason)
            reload_with("The invoice is void; the next one carries its amount.")

    async def write_off() -> None:
        reason = await confirm(
            viewer,
            "Write this invoice off?",
            f"What is open of {money(invoice.total_usd).text} is given up and booked as uncollectible.",
            "Write off",
            danger=True,
        )
        if reason is not None:
            await admin_invoices.write_off_invoice(
                console.database,
                viewer.actor,
                ref=ref,
                reason=reason,
            )
            reload_with("The invoice is written off.")

    secondary("Void", viewer.act(void), icon="block")
    secondary("Write off", viewer.act(write_off), icon="money_off")


def _numbers(console: Console, viewer: Viewer, invoice: InvoiceView) -> None:
    now = console.clock.now()
    with box("div", "grid stats"):
        Stat("Total", money(invoice.total_usd), "whole cents")
        Stat("Exact sum", money(invoice.exact_usd), "of the lines")
        Stat("Credited", money(invoice.credited_usd), "by credit notes")
        Stat("Due", moment(invoice.due_at, now))
    items: list[tuple[str, Formatted | str]] = [
        ("Organisation", invoice.tenant),
        ("Finalised", moment(invoice.finalized_at, now)),
        ("Paid", moment(invoice.paid_at, now)),
        ("Open", money(invoice.open_usd)),
        ("Carried to the next", money(invoice.carried_usd)),
    ]
    if viewer.is_platform:
        items.append(("At Stripe", invoice.stripe_invoice_id or "not sent"))
    with card("Facts"):
        description_list(items)


def _lines(console: Console, viewer: Viewer, detail: InvoiceDetail) -> None:
    by_id = {str(line.id): line for line in detail.lines}

    async def trace(_: str, row: str) -> None:
        await _open_trace(console, viewer, by_id[row])

    with card("Lines", "Each is exact and rounded to cents once.", flush=True):
        data_table(
            _LINES,
            [line_row(line) for line in detail.lines],
            label="Lines",
            nothing="The invoice has no line.",
            on_action=viewer.act(trace),
        )


def line_row(line: LineView) -> Row:
    """The table row of one invoice line; usage lines get a button that shows their requests."""
    what = line.model or words(line.kind).capitalize()
    parts = (line.token_class, line.tier, f"price {line.price_version}" if line.price_version else "")
    sub = ", ".join(words(part) for part in parts if part)
    return {
        "id": str(line.id),
        "line": cell(what, sub=sub if line.model else line.description, text=True),
        "tokens": cell(count(line.tokens if line.model else None)),
        "price": cell(per_mtok(line.price_per_mtok_usd)),
        "exact": cell(line.exact_usd, mono=True),
        "amount": cell(money(line.amount_usd)),
        "acts": actions_cell(
            [("trace", "Requests", "")] if line.kind in _TRACED else [], f"of {line.description}"
        ),
    }


async def _open_trace(console: Console, viewer: Viewer, line: LineView) -> None:
    """Show the requests behind a line page by page. Their exact amounts add up to the line's amount."""
    with ui.dialog() as dialog, ui.card().classes("dialog wide").props("flat"):
        dialog.props["aria-label"] = "Requests behind the line"
        Text("h2", "Requests behind the line")
        Text("p", line.description, "muted")
        table = data_table(_TRACE, [], label="Requests", nothing="No request stands behind it.", page_size=25)
        progress = Text("p", "", "muted")
        with box("div", "actions"):
            more = secondary("More", lambda: None)
            secondary("Close", dialog.close)
    rows: list[Row] = []
    after: UUID | None = None

    async def load() -> None:
        nonlocal after
        page: TracePage = await admin_invoices.trace_line(
            console.database, viewer.actor, line_id=line.id, limit=TRACE_ROWS, after=after
        )
        rows.extend(trace_rows(page, console.clock.now()))
        table.rows = list(rows)
        table.props["hide-pagination"] = len(rows) <= 25
        after = page.next
        more.set_visibility(after is not None)
        whole = f"all {len(rows)} requests: they add up to ${line.exact_usd}"
        progress.set_text(f"{len(rows)} requests so far." if after else f"These are {whole}.")

    more.on_click(viewer.act(load))
    await load()
    dialog.on("hide", dialog.delete)
    dialog.open()


def trace_rows(page: TracePage, now: datetime) -> list[Row]:
    """Table rows of a line's requests."""
    return [
        {
            "id": str(one.request_id),
            "request": cell(str(one.request_id), mono=True, href=f"/requests/{one.request_id}"),
            "ended": cell(
                moment(one.ended_at, now),
                sub="" if one.used_at == one.ended_at else f"used {one.used_at[:10]}",
            ),
            "tokens": cell(count(one.tokens)),
            "cost": cell(money(one.exact_usd)),
        }
        for one in page.rows
    ]


def _parts(note: CreditNoteView) -> str:
    """The parts of a note that was divided, because its invoice was paid in part."""
    parts = {"on the balance": note.balance_usd, "paid back": note.refund_usd}
    shown = [
        f"${usd} {where}"
        for where, usd in parts.items()
        if Decimal(usd) and Decimal(usd) != Decimal(note.amount_usd)
    ]
    return ", ".join(shown)


def _credit_notes(console: Console, detail: InvoiceDetail) -> None:
    if not detail.credit_notes:
        return
    now = console.clock.now()
    rows: list[Row] = [
        {
            "id": str(note.id),
            "reason": cell(note.reason, wrap=True),
            "amount": cell(money(note.amount_usd), sub=f"{note.exact_usd} exact"),
            "pays": cell(_PAYS.get(note.pays, note.pays), sub=_parts(note)),
            "status": cell(note.status.capitalize(), tone="idle" if note.status == "void" else "ok"),
            "at": cell(moment(note.created_at, now)),
        }
        for note in detail.credit_notes
    ]
    with card("Credit notes", flush=True):
        data_table(_NOTES, rows, label="Credit notes", nothing="No credit note.")
