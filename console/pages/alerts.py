"""Budgets and alerts: rules, endpoints and sent notices; for platform roles also undelivered notices."""

from uuid import UUID

from fastapi import Request

from admin import alerts as admin_alerts
from admin import tenants as admin_tenants
from console.components.base import page_head
from console.components.tabs import chosen_tab, link_tabs
from console.deps import Console
from console.panels.alert_rules import AlertRulesPanel, all_rules
from console.panels.endpoints import EndpointsPanel, notices_table
from console.viewer import Viewer

TABS = {
    "budgets": "Budgets",
    "notices": "The platform's notices",
    "undelivered": "Undelivered",
    "outbox": "Outbox",
}


async def build(console: Console, viewer: Viewer, request: Request) -> None:
    """Draw the alerts of the viewer's organisation; for platform roles those of all organisations."""
    with page_head("Alerts", "Budgets, low balances, and who hears of them by e-mail or webhook."):
        pass
    if not viewer.is_platform:
        await alerts_panel(console, viewer, viewer.tenant_id)
        return
    tab = chosen_tab(request.query_params, TABS)
    link_tabs("/alerts", TABS, tab, label="Alerts")
    tenants = await admin_tenants.list_tenants(console.database, viewer.actor)
    names = {one.id: one.name for one in tenants}
    if tab == "budgets":
        await all_rules(console, viewer, names)
    elif tab == "notices":
        await EndpointsPanel(console, viewer, None).draw()
        await _own_notices(console, viewer, None)
    else:
        await _unsent(console, viewer, tab, names)


async def alerts_panel(console: Console, viewer: Viewer, tenant_id: UUID) -> None:
    """Draw rules, endpoints and notices of one organisation."""
    await AlertRulesPanel(console, viewer, tenant_id).draw()
    await EndpointsPanel(console, viewer, tenant_id).draw()
    await _own_notices(console, viewer, tenant_id)


async def _own_notices(console: Console, viewer: Viewer, tenant_id: UUID | None) -> None:
    found = await admin_alerts.list_notices(console.database, viewer.actor, tenant_id=tenant_id)
    notices_table(
        console,
        viewer,
        found,
        title="Notices",
        sub="The last hundred, the newest first.",
        nothing="Nothing had to be told yet.",
    )


async def _unsent(console: Console, viewer: Viewer, tab: str, names: dict[UUID, str]) -> None:
    """Draw the mail kept without an SMTP server, or the undelivered notices."""
    database, actor = console.database, viewer.actor
    if tab == "outbox":
        found = await admin_alerts.list_outbox(database, actor)
        mail = (
            ""
            if console.settings.smtp_url.get_secret_value()
            else " No mail server is set (PENSTOCK_SMTP_URL)."
        )
        title, sub = "Outbox", f"Mail that was kept here instead of being sent.{mail}"
        nothing = "No mail was kept."
    else:
        found = await admin_alerts.list_undelivered(database, actor)
        title, sub = (
            "Undelivered",
            "What did not arrive so far; it is tried again until it is given up as failed.",
        )
        nothing = "Everything has arrived."
    notices_table(console, viewer, found, title=title, sub=sub, nothing=nothing, names=names)
