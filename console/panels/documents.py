"""Documents of an organisation: invoices, signed statements, payments, refunds, adjustments."""

import asyncio
from collections.abc import Sequence
from datetime import date, datetime
from uuid import UUID

from admin import adjustments as admin_adjustments
from admin import invoices as admin_invoices
from admin import payments as admin_payments
from admin import statements as admin_statements
from billing.invoicing.views import InvoiceView
from billing.ledger.adjustments import Adjustment
from billing.ledger.months import month_name
from billing.payments.views import RefundView, TopupView
from billing.statements.issue import StatementView
from console.components.base import Text, card
from console.components.table import Column, Row, cell, data_table
from console.deps import Console
from console.format import moment, money, short_id
from console.panels.invoices import TONES
from console.viewer import Viewer

_INVOICES = (
    Column("number", "Invoice"),
    Column("month", "Month"),
    Column("status", "State"),
    Column("total", "Total", numeric=True),
    Column("credited", "Credited", numeric=True),
    Column("due", "Due", numeric=True),
)
_STATEMENTS = (
    Column("month", "Month"),
    Column("state", "State"),
    Column("pdf", "PDF", sortable=False),
    Column("json", "JSON", sortable=False),
    Column("sum", "Fingerprint", sortable=False),
    Column("at", "Issued", numeric=True),
)
_PURCHASES = (
    Column("at", "When"),
    Column("amount", "Amount", numeric=True),
    Column("status", "State"),
    Column("kind", "How"),
    Column("note", "Note", sortable=False),
)
_REFUNDS = (
    Column("at", "When"),
    Column("amount", "Amount", numeric=True),
    Column("status", "State"),
    Column("reason", "Reason", sortable=False),
)
_ADJUSTMENTS = (
    Column("at", "When"),
    Column("amount", "Amount", numeric=True),
    Column("corrects", "Month it corrects"),
    Column("reason", "Reason", sortable=False),
)
PAID_TONES = {"succeeded": "ok", "pending": "info", "failed": "bad", "expired": "idle", "canceled": "idle"}
_HOW = {"checkout": "Payment page", "auto": "Automatic"}


async def documents_panel(console: Console, viewer: Viewer, tenant_id: UUID) -> None:
    """Draw invoices and statements of one organisation."""
    database, actor = console.database, viewer.actor
    invoices, statements = await asyncio.gather(
        admin_invoices.list_invoices(database, actor, tenant_id=tenant_id),
        admin_statements.list_statements(database, actor, tenant_id=tenant_id),
    )
    now = console.clock.now()
    with card("Invoices", "Each line leads to the requests behind it.", flush=True):
        data_table(
            _INVOICES,
            [_invoice_row(one, now) for one in invoices],
            label="Invoices",
            nothing="No invoice yet. They are made when a month is over.",
        )
    base = "/billing" if viewer.scope else f"/tenants/{tenant_id}"
    with card("Statements", "Signed: what was used, paid and credited in a month.", flush=True):
        data_table(
            _STATEMENTS,
            [
                *_draft_rows(base, now.date(), statements),
                *(_statement_row(base, one, now) for one in statements),
            ],
            label="Statements",
            nothing="No statement yet.",
        )
        Text(
            "p",
            "Check a file with “penstock verify FILE --keys keys.json”; the public keys are at "
            f"{console.api_base_url.removesuffix('/v1')}/.well-known/penstock-keys.json.",
            "card-note",
        )


def _invoice_row(one: InvoiceView, now: datetime) -> Row:
    name = one.number or short_id(one.id).text
    due = moment(one.due_at, now) if one.due_at else None
    paid = f"paid {one.paid_at[:10]}" if one.paid_at else ""
    return {
        "id": str(one.id),
        "number": cell(name, href=f"/invoices/{one.id}", sub=one.kind),
        "month": cell(one.month),
        "status": cell(one.status.capitalize(), tone=TONES.get(one.status, "idle")),
        "total": cell(money(one.total_usd)),
        "credited": cell(money(one.credited_usd)),
        "due": cell(due, sub=paid) if due else cell("–", sub=paid),
    }


def _draft_rows(base: str, today: date, kept: Sequence[StatementView]) -> list[Row]:
    """Rows of the present and the previous month while they have no final statement."""
    this = today.replace(day=1)
    before = date.fromordinal(this.toordinal() - 1).replace(day=1)
    final = {one.month for one in kept}
    return [
        {
            "id": month_name(month),
            "month": cell(month_name(month)),
            "state": cell("Draft", tone="idle"),
            **_files(base, month_name(month)),
            "sum": cell("–", sub="the month is open"),
            "at": cell("–"),
        }
        for month in (this, before)
        if month_name(month) not in final
    ]


def _statement_row(base: str, one: StatementView, now: datetime) -> Row:
    return {
        "id": str(one.id),
        "month": cell(one.month, sub=f"revision {one.revision}" if one.revision > 1 else ""),
        "state": cell("Final", tone="ok"),
        **_files(base, one.month),
        "sum": cell(f"{one.body_sha256[:12]}…", mono=True),
        "at": cell(moment(one.created_at, now)),
    }


def _files(base: str, month: str) -> Row:
    return {
        "pdf": cell("PDF", href=f"{base}/statements/{month}.pdf"),
        "json": cell("JSON", href=f"{base}/statements/{month}.json"),
    }


async def payments_panel(console: Console, viewer: Viewer, tenant_id: UUID) -> None:
    """Draw purchases of credit, refunds and adjustments of one organisation."""
    database, actor = console.database, viewer.actor
    purchases, refunds, corrections = await asyncio.gather(
        admin_payments.list_topups(database, actor, tenant_id=tenant_id),
        admin_payments.list_refunds(database, actor, tenant_id=tenant_id),
        admin_adjustments.list_adjustments(database, actor, tenant_id=tenant_id),
    )
    now = console.clock.now()
    with card("Purchases", "Credit that was bought, the newest first.", flush=True):
        data_table(
            _PURCHASES,
            [_purchase_row(one, now) for one in purchases],
            label="Purchases",
            nothing="No credit was bought yet.",
        )
    with card("Refunds", "Money that goes back to the card.", flush=True):
        data_table(
            _REFUNDS,
            [_refund_row(one, now) for one in refunds],
            label="Refunds",
            nothing="Nothing was refunded.",
        )
    adjustments_table(corrections, now, is_platform=viewer.is_platform)


def adjustments_table(rows: Sequence[Adjustment], now: datetime, *, is_platform: bool) -> None:
    """Draw a table of booked adjustments."""
    with card("Adjustments", "Corrections; above zero is in the customer's favour.", flush=True):
        data_table(
            _ADJUSTMENTS,
            [_adjustment_row(one, now, is_platform=is_platform) for one in rows],
            label="Adjustments",
            nothing="Nothing was adjusted.",
        )


def _purchase_row(one: TopupView, now: datetime) -> Row:
    return {
        "id": str(one.id),
        "at": cell(moment(one.created_at, now)),
        "amount": cell(money(one.amount_usd)),
        "status": cell(one.status.capitalize(), tone=PAID_TONES.get(one.status, "idle")),
        "kind": cell(_HOW.get(one.kind, one.kind), sub=one.created_by),
        "note": cell(one.error or "–", wrap=True),
    }


def _refund_row(one: RefundView, now: datetime) -> Row:
    return {
        "id": str(one.id),
        "at": cell(moment(one.created_at, now)),
        "amount": cell(money(one.amount_usd)),
        "status": cell(one.status.capitalize(), tone=PAID_TONES.get(one.status, "idle")),
        "reason": cell(one.reason, wrap=True, sub=one.error or ""),
    }


def _adjustment_row(one: Adjustment, now: datetime, *, is_platform: bool) -> Row:
    people = f"{one.created_by}, agreed by {one.approved_by}" if one.approved_by else one.created_by
    return {
        "id": str(one.id),
        "at": cell(moment(one.created_at, now)),
        "amount": cell(money(one.amount_usd)),
        "corrects": cell(one.corrects or "–"),
        "reason": cell(one.reason, wrap=True, sub=people if is_platform else ""),
    }
