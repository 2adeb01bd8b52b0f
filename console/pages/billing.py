"""Billing of a customer: credit and how to buy it, documents, payments, and the terms in effect."""

from uuid import UUID

from fastapi import Request

from admin import accounts as admin_accounts
from console.components.base import page_head
from console.components.tabs import chosen_tab, link_tabs
from console.deps import Console
from console.panels.contract import contract_panel
from console.panels.documents import documents_panel, payments_panel
from console.panels.money import money_panel
from console.panels.prices import own_prices_panel
from console.panels.topup import TopupPanel, TopupResult
from console.viewer import Viewer

TABS = {
    "credit": "Balance and credit",
    "documents": "Invoices and statements",
    "payments": "Payments",
    "terms": "Contract and prices",
}


async def build(console: Console, viewer: Viewer, request: Request) -> None:
    """Draw the account of the viewer's organisation."""
    tenant_id = viewer.tenant_id
    tab = chosen_tab(request.query_params, TABS)
    with page_head("Billing", "Your organisation's credit, papers and prices, in US dollars without tax."):
        pass
    link_tabs("/billing", TABS, tab, label="Billing")
    if tab == "documents":
        await documents_panel(console, viewer, tenant_id)
    elif tab == "payments":
        await payments_panel(console, viewer, tenant_id)
    elif tab == "terms":
        await contract_panel(console, viewer, tenant_id)
        await own_prices_panel(console, viewer, tenant_id)
    else:
        await _credit(console, viewer, tenant_id, request)


async def _credit(console: Console, viewer: Viewer, tenant_id: UUID, request: Request) -> None:
    """Draw the credit left and the ways to buy more."""
    paid = _uuid(request.query_params.get("topup", ""))
    if paid is not None:
        await TopupResult(console, viewer, tenant_id, paid).draw()
    await money_panel(console, viewer, tenant_id)
    account = await admin_accounts.get_account(console.database, viewer.actor, tenant_id=tenant_id)
    if account.mode == "prepaid":
        await TopupPanel(console, viewer, tenant_id, str(request.base_url.replace(path="/billing"))).draw()


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
