"""One organisation: money, projects and keys, limits, usage, and its audit log."""

import asyncio
from uuid import UUID

from fastapi import Request
from nicegui import ui

from admin import adjustments as admin_adjustments
from admin import audit as admin_audit
from admin import tenants as admin_tenants
from console.components.base import badge, box, card, notice, page_head
from console.components.dialogs import confirm, secondary
from console.components.table import Column, data_table
from console.components.tabs import chosen_tab, link_tabs
from console.deps import Console
from console.format import moment, money
from console.pages.alerts import alerts_panel
from console.pages.audit import audit_rows, show_entry
from console.pages.tenants import STATUS_TONES, change_status
from console.panels.adapters import adapters_panel
from console.panels.adjust import open_adjust_form
from console.panels.contract import contract_panel
from console.panels.documents import adjustments_table, documents_panel, payments_panel
from console.panels.keys import keys_panel
from console.panels.limits import limits_panel
from console.panels.money import money_panel
from console.panels.people import people_panel
from console.panels.prices import own_prices_panel
from console.panels.share import share_panel
from console.panels.usage import usage_panel
from console.viewer import Viewer
from core.errors import NotFound
from tenants.views import TenantView

_AUDIT_COLUMNS = (
    Column("at", "When"),
    Column("actor", "Who"),
    Column("action", "What"),
    Column("reason", "Reason", sortable=False),
    Column("acts", ""),
)
THROTTLE_REQUESTS_PER_MIN = 60
"""Requests per minute of a throttled organisation."""
THROTTLE_CONCURRENCY = 4
_TABS = {
    "overview": "Overview",
    "money": "Contract and prices",
    "papers": "Papers and payments",
    "alerts": "Alerts",
    "keys": "Projects and keys",
    "limits": "Limits",
    "adapters": "Adapters",
    "people": "People",
    "audit": "Audit",
}


async def build(console: Console, viewer: Viewer, request: Request) -> None:
    """Draw the organisation of the path. Raises NotFound."""
    tenant = await admin_tenants.get_tenant(console.database, viewer.actor, tenant_id=_path_id(request))
    with page_head(tenant.name, f"{tenant.slug} · {tenant.id}", crumb=("Tenants", "/tenants")):
        badge(tenant.status.capitalize(), STATUS_TONES.get(tenant.status, "idle"))
        if viewer.is_admin:
            if tenant.status == "active" and not _throttled(console, tenant):
                _throttle_button(console, viewer, tenant)
            _status_button(console, viewer, tenant)
    _throttle_notice(console, viewer, tenant)
    if tenant.status == "suspended":
        notice("warn", "This tenant is suspended", "Its keys are refused until it is resumed.")
    tab = chosen_tab(request.query_params, _TABS)
    link_tabs(f"/tenants/{tenant.id}", _TABS, tab, label="Tenant")
    if tab == "money":
        await _money(console, viewer, tenant.id)
    elif tab == "papers":
        await documents_panel(console, viewer, tenant.id)
        await payments_panel(console, viewer, tenant.id)
    elif tab == "alerts":
        await alerts_panel(console, viewer, tenant.id)
    elif tab == "keys":
        await keys_panel(console, viewer, tenant.id)
    elif tab == "adapters":
        await adapters_panel(console, viewer, tenant.id)
    elif tab == "limits":
        share_panel(console, viewer, tenant)
        await limits_panel(console, viewer, tenant.id)
    elif tab == "people":
        await people_panel(console, viewer, tenant.id)
    elif tab == "audit":
        await _audit(console, viewer, tenant)
    else:
        await money_panel(console, viewer, tenant.id)
        await usage_panel(console, viewer, tenant.id)


async def _money(console: Console, viewer: Viewer, tenant_id: UUID) -> None:
    """Draw the contract, adjustments and prices."""
    await contract_panel(console, viewer, tenant_id)
    acts = box("div", "actions")
    place = box("div", "stack")

    async def reload() -> None:
        database, actor = console.database, viewer.actor
        waiting, booked = await asyncio.gather(
            admin_adjustments.list_requests(database, actor, tenant_id=tenant_id),
            admin_adjustments.list_adjustments(database, actor, tenant_id=tenant_id),
        )
        place.clear()
        with place:
            if waiting:
                several = f"{len(waiting)} adjustments wait" if len(waiting) > 1 else "An adjustment waits"
                notice(
                    "info",
                    f"{several} for a second person",
                    ", ".join(f"{money(one.amount_usd).text}: {one.reason}" for one in waiting[:5]),
                    "/periods?tab=changes",
                )
            adjustments_table(booked, console.clock.now(), is_platform=True)

    if viewer.may_bill:

        async def adjust() -> None:
            await open_adjust_form(console, viewer, tenant_id, done=reload)

        with acts:
            secondary("Adjust", viewer.act(adjust), icon="tune")
    await reload()
    await own_prices_panel(console, viewer, tenant_id)


def _path_id(request: Request) -> UUID:
    try:
        return UUID(request.path_params["tenant_id"])
    except ValueError:
        raise NotFound("There is no such tenant.") from None


def _status_button(console: Console, viewer: Viewer, tenant: TenantView) -> None:
    suspend = tenant.status == "active"

    async def change() -> None:
        if await change_status(console, viewer, tenant, suspend=suspend):
            ui.navigate.reload()

    secondary(
        "Suspend" if suspend else "Resume", viewer.act(change), icon="block" if suspend else "play_arrow"
    )


def _throttle_button(console: Console, viewer: Viewer, tenant: TenantView) -> None:
    """The button that throttles the organisation for an hour."""

    async def throttle() -> None:
        reason = await confirm(
            viewer,
            f"Throttle {tenant.name} for an hour?",
            f"At most {THROTTLE_REQUESTS_PER_MIN} requests a minute and {THROTTLE_CONCURRENCY} open ones, "
            "until it lapses by itself.",
            "Throttle",
        )
        if reason is None:
            return
        await admin_tenants.throttle_tenant(
            console.database,
            viewer.actor,
            tenant_id=tenant.id,
            minutes=60,
            requests_per_min=THROTTLE_REQUESTS_PER_MIN,
            concurrency=THROTTLE_CONCURRENCY,
            reason=reason,
        )
        ui.navigate.reload()

    secondary("Throttle 1 h", viewer.act(throttle), icon="speed")


def _throttle_notice(console: Console, viewer: Viewer, tenant: TenantView) -> None:
    """Show that a throttle is in effect, with a button that lifts it."""
    if not _throttled(console, tenant):
        return

    async def lift() -> None:
        reason = await confirm(
            viewer, f"Lift the throttle of {tenant.name}?", "Its own limits hold again.", "Lift"
        )
        if reason is None:
            return
        await admin_tenants.throttle_tenant(
            console.database, viewer.actor, tenant_id=tenant.id, minutes=0, reason=reason
        )
        ui.navigate.reload()

    until = moment(tenant.throttle_until, console.clock.now())
    notice(
        "warn",
        "This tenant is throttled",
        f"At most {tenant.throttle_requests_per_min} requests a minute and {tenant.throttle_concurrency} open ones; "
        f"it lapses {until.text} ({until.exact}).",
    )
    if viewer.is_admin:
        with box("div", "actions"):
            secondary("Lift throttle", viewer.act(lift), icon="lock_open")


def _throttled(console: Console, tenant: TenantView) -> bool:
    return tenant.throttle_until is not None and tenant.throttle_until > console.clock.now()


async def _audit(console: Console, viewer: Viewer, tenant: TenantView) -> None:
    entries = await admin_audit.list_audit(console.database, viewer.actor, tenant_id=tenant.id, limit=50)
    found = {str(entry.id): entry for entry in entries}

    async def detail(_: str, row: str) -> None:
        if row in found:
            show_entry(found[row], {str(tenant.id): tenant.name})

    with card("Recent acts", "The last fifty; the audit log has all.", flush=True):
        data_table(
            _AUDIT_COLUMNS,
            audit_rows(console, entries, {}),
            label="Recent acts",
            nothing="Nothing has been done to this tenant yet.",
            on_action=viewer.act(detail),
            sort_by="at",
            descending=True,
        )
