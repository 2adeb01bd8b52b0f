"""Billing for platform roles: months and their close, invoices, payments, adjustments and corrections."""

from datetime import date

from fastapi import Request
from nicegui import ui

from admin import periods as admin_periods
from admin import tenants as admin_tenants
from billing.close.periods import Period
from billing.ledger.months import month_name, parse_month
from console.components.base import page_head
from console.components.tabs import chosen_tab, link_tabs
from console.deps import Console
from console.panels.changes import changes_panel
from console.panels.close import close_panel, months_panel
from console.panels.collection import collection_panel
from console.panels.invoices import invoices_panel, read_filters
from console.viewer import Viewer

TABS = {
    "close": "Close",
    "invoices": "Invoices",
    "stripe": "Stripe and payments",
    "changes": "Adjustments and corrections",
}


async def build(console: Console, viewer: Viewer, request: Request) -> None:
    """Draw the tab and the month that the address selects."""
    periods = await admin_periods.list_periods(console.database, viewer.actor)
    month = chosen_month(request.query_params.get("month", ""), periods)
    tab = chosen_tab(request.query_params, TABS)
    with page_head(
        "Billing", "Accounting months in UTC, invoices and payments. Amounts in US dollars without tax."
    ):
        month_select(periods, month, "/periods", tab)
    link_tabs("/periods", TABS, tab, label="Billing", month=month_name(month))
    if tab == "close":
        period = next(one for one in periods if one.month == month_name(month))
        await close_panel(console, viewer, period, month)
        months_panel(console, periods)
        return
    tenants = await admin_tenants.list_tenants(console.database, viewer.actor)
    names = {tenant.id: tenant.name for tenant in tenants}
    if tab == "invoices":
        await invoices_panel(console, viewer, month, read_filters(request.query_params), names)
    elif tab == "stripe":
        await collection_panel(console, viewer, month, names)
    else:
        await changes_panel(console, viewer, month, names)


def known_month(text: str, periods: list[Period]) -> date | None:
    """The first day of the month `text` (YYYY-MM) when it is among `periods`, else None."""
    return parse_month(text) if text in {one.month for one in periods} else None


def chosen_month(text: str, periods: list[Period]) -> date:
    """The month `text` (YYYY-MM); else the oldest ended month that is still open, else the present month."""
    waiting = [one.month for one in periods[1:] if one.status != "closed"]
    return known_month(text, periods) or parse_month(waiting[-1] if waiting else periods[0].month)


def month_select(periods: list[Period], month: date, path: str, tab: str) -> None:
    """A selection of months; changing it loads the page of that month."""
    names = {one.month: f"{one.month} · {one.status}" for one in periods}
    field = ui.select(
        names,
        value=month_name(month),
        label="Month",
        on_change=lambda event: ui.navigate.to(f"{path}?tab={tab}&month={event.value}"),
    )
    field.props("outlined dense options-dense")
