"""Invoices as a list: by month, organisation and state, a page at a time."""

from collections.abc import Sequence
from datetime import date, datetime
from urllib.parse import urlencode
from uuid import UUID

import msgspec
from nicegui import ui
from starlette.datastructures import QueryParams

from admin import invoices as admin_invoices
from billing.invoicing.views import InvoiceView
from billing.ledger.months import month_name
from console.components.base import box, card, link_button
from console.components.table import Column, Row, cell, data_table
from console.deps import Console
from console.format import moment, money, short_id
from console.viewer import Viewer

PAGE_ROWS = 200
TONES = {
    "draft": "idle",
    "open": "info",
    "paid": "ok",
    "settled": "ok",
    "void": "idle",
    "uncollectible": "bad",
}
_COLUMNS = (
    Column("number", "Invoice"),
    Column("tenant", "Tenant"),
    Column("month", "Month"),
    Column("kind", "Kind"),
    Column("status", "State"),
    Column("total", "Total", numeric=True),
    Column("credited", "Credited", numeric=True),
    Column("due", "Due", numeric=True),
)


class Filters(msgspec.Struct, frozen=True):
    """The filters of the list; `after` is the id of the last invoice of the previous page."""

    status: str = ""
    tenant: str = ""
    after: str = ""

    def query(self, month: str, **more: str) -> str:
        """The filters as a query string; `more` adds or replaces parameters."""
        values = {"tab": "invoices", "month": month, **msgspec.structs.asdict(self), **more}
        return urlencode({name: value for name, value in values.items() if value})


def read_filters(params: QueryParams) -> Filters:
    """The filters of an address; invalid values are ignored."""
    status = params.get("status", "")
    return Filters(
        status=status if status in admin_invoices.STATUSES else "",
        tenant=_uuid(params.get("tenant", "")),
        after=_uuid(params.get("after", "")),
    )


def _uuid(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        return ""


async def invoices_panel(
    console: Console, viewer: Viewer, month: date, filters: Filters, tenants: dict[UUID, str]
) -> None:
    """Draw the list with its filters."""
    name = month_name(month)
    found = await admin_invoices.list_invoices(
        console.database,
        viewer.actor,
        month=month,
        tenant_id=UUID(filters.tenant) if filters.tenant else None,
        status=filters.status or None,
        limit=PAGE_ROWS,
        after=UUID(filters.after) if filters.after else None,
    )

    def go() -> None:
        chosen = Filters(status=status.value or "", tenant=tenant.value or "")
        ui.navigate.to(f"/periods?{chosen.query(name)}")

    with box("div", "filters"):
        search = ui.input("Search").props("outlined dense clearable").classes("search")
        states = {"": "Every state", **{one: one.capitalize() for one in admin_invoices.STATUSES}}
        status = ui.select(states, value=filters.status, label="State", on_change=go).props("outlined dense")
        names = {"": "All tenants", **{str(one): words for one, words in tenants.items()}}
        tenant = ui.select(
            names, value=filters.tenant if filters.tenant in names else "", label="Tenant", on_change=go
        ).props("outlined dense")
    with card(f"Invoices of {name}", "Open one to follow its lines to requests.", flush=True):
        table = data_table(
            _COLUMNS,
            invoice_rows(found, console.clock.now()),
            label="Invoices",
            nothing="No invoice of this month. They are made from 48 hours after its end on.",
        )
        search.bind_value_to(table, "filter")
    with box("div", "actions"):
        if filters.after:
            link_button("First page", f"/periods?{msgspec.structs.replace(filters, after='').query(name)}")
        if len(found) == PAGE_ROWS:
            link_button("Next page", f"/periods?{filters.query(name, after=str(found[-1].id))}")


def invoice_rows(invoices: Sequence[InvoiceView], now: datetime) -> list[Row]:
    """Table rows of invoices, each with a link."""
    return [
        {
            "id": str(invoice.id),
            "number": cell(
                invoice.number or short_id(invoice.id), href=f"/invoices/{invoice.number or invoice.id}"
            ),
            "tenant": cell(invoice.tenant, text=True),
            "month": cell(invoice.month),
            "kind": cell(invoice.kind.capitalize()),
            "status": cell(invoice.status.capitalize(), tone=TONES.get(invoice.status, "idle")),
            "total": cell(money(invoice.total_usd)),
            "credited": cell(money(invoice.credited_usd if invoice.credited_usd != "0.00" else None)),
            "due": cell(moment(invoice.due_at, now)),
        }
        for invoice in invoices
    ]
