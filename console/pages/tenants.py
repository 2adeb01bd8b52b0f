"""All organisations with status, balance and spending; create, suspend and resume."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

from fastapi import Request
from nicegui import ui

from admin import tenants as admin_tenants
from billing.ledger.accounts import AccountView
from console.components.base import box, card, page_head
from console.components.dialogs import confirm, form_dialog, primary, text_input
from console.components.table import Column, Row, actions_cell, cell, data_table, set_rows
from console.deps import Console
from console.format import Formatted, moment, money
from console.panels.limits import limits_text
from console.queries import all_accounts
from console.viewer import Viewer, toast_ok
from tenants.principal import default_limits
from tenants.views import TenantView

STATUS_TONES = {"active": "ok", "suspended": "bad"}
TIERS = {"standard": "Standard", "priority": "Priority", "batch": "Batch"}
MODES = {"prepaid": "Prepaid: credit first", "postpaid": "Postpaid: invoiced"}

_COLUMNS = (
    Column("name", "Tenant"),
    Column("status", "Status"),
    Column("available", "Available", numeric=True),
    Column("spent", "Spent this month", numeric=True),
    Column("budget", "Budget", numeric=True),
    Column("created", "Created", numeric=True),
    Column("acts", ""),
)


async def build(console: Console, viewer: Viewer, request: Request) -> None:
    """Draw the list."""
    page = _TenantsPage(console, viewer)
    with page_head("Tenants", "Organisations that use the platform, what they have and what they spend."):
        if viewer.is_admin:
            primary("New tenant", viewer.act(page.create), icon="add")
    with box("div", "filters"):
        search = (
            ui.input("Search", placeholder="Name, status, id")
            .props("outlined dense clearable")
            .classes("search")
        )
    with card(flush=True):
        page.table = data_table(
            _COLUMNS,
            await page.rows(),
            label="Tenants",
            nothing="No tenant yet. Create the first one.",
            on_action=viewer.act(page.act),
            sort_by="name",
        )
    search.bind_value_to(page.table, "filter")


class _TenantsPage:
    """The list and its actions."""

    def __init__(self, console: Console, viewer: Viewer) -> None:
        self.console = console
        self.viewer = viewer
        self.table: ui.table

    async def rows(self) -> list[Row]:
        """Read organisations and accounts, as table rows."""
        database, actor = self.console.database, self.viewer.actor
        tenants, accounts = await asyncio.gather(
            admin_tenants.list_tenants(database, actor), all_accounts(database)
        )
        return self._rows(tenants, accounts)

    def _rows(self, tenants: Sequence[TenantView], accounts: dict[UUID, AccountView]) -> list[Row]:
        now = self.console.clock.now()
        rows = []
        for tenant in tenants:
            account = accounts.get(tenant.id)
            acts = []
            if self.viewer.is_admin:
                acts = (
                    [("suspend", "Suspend", "bad")]
                    if tenant.status == "active"
                    else [("resume", "Resume", "")]
                )
            rows.append(
                {
                    "id": str(tenant.id),
                    "name": cell(
                        tenant.name, href=f"/tenants/{tenant.id}", sub=f"{tenant.slug} · {tenant.tier}"
                    ),
                    "status": cell(tenant.status.capitalize(), tone=STATUS_TONES.get(tenant.status, "idle")),
                    "available": cell(available(account), sub=_held(account)),
                    "spent": cell(money(account.spent_this_month_usd if account else None)),
                    "budget": cell(money(account.budget_usd if account else None)),
                    "created": cell(moment(tenant.created_at, now)),
                    "acts": actions_cell(acts, tenant.name),
                }
            )
        return rows

    async def reload(self) -> None:
        """Show the present state."""
        set_rows(self.table, await self.rows())

    async def act(self, name: str, row: str) -> None:
        """Suspend or resume the tenant of a row."""
        tenant_id = UUID(row)
        tenant = await admin_tenants.get_tenant(self.console.database, self.viewer.actor, tenant_id=tenant_id)
        if await change_status(self.console, self.viewer, tenant, suspend=name == "suspend"):
            await self.reload()

    async def create(self) -> None:
        """Open the form that creates an organisation with its first project and account."""

        limits = default_limits(self.console.settings)

        async def save() -> bool:
            if not name.value.strip():
                name.error = "Give the organisation a name."
                return False
            made = await admin_tenants.create_tenant(
                self.console.database,
                self.viewer.actor,
                name=name.value.strip(),
                tier=tier.value,
                billing_mode=mode.value,
                limits=limits,
            )
            toast_ok(f"{made.name} is ready.")
            ui.navigate.to(f"/tenants/{made.id}")
            return True

        with form_dialog(
            "New tenant",
            "Create tenant",
            self.viewer,
            save,
            sub=f"It starts with a project named default and these limits: {limits_text(limits)}.",
        ):
            name = text_input("Name").props("autofocus maxlength=100")
            with box("div", "fields"):
                tier = ui.select(TIERS, value="standard", label="Tier").props("outlined dense")
                mode = ui.select(MODES, value="prepaid", label="Billing").props("outlined dense")


def available(account: AccountView | None) -> Formatted:
    """The amount that new requests may still hold."""
    if account is not None and account.available_usd is None:
        return Formatted("No bound", "Postpaid without a credit limit or budget", float("inf"))
    return money(account.available_usd if account else None)


def _held(account: AccountView | None) -> str:
    return f"{money(account.held_usd).text} held" if account is not None and account.open_requests else ""


async def change_status(console: Console, viewer: Viewer, tenant: TenantView, *, suspend: bool) -> bool:
    """Confirm with a reason, then suspend or resume. Returns False when cancelled."""
    if suspend:
        reason = await confirm(
            viewer,
            f"Suspend {tenant.name}?",
            "Its keys stop working within seconds and running streams are cut. Nothing is deleted.",
            "Suspend",
            danger=True,
        )
        if reason is None:
            return False
        await admin_tenants.suspend_tenant(console.database, viewer.actor, tenant_id=tenant.id, reason=reason)
        toast_ok(f"{tenant.name} is suspended.")
    else:
        reason = await confirm(viewer, f"Resume {tenant.name}?", "Its keys work again at once.", "Resume")
        if reason is None:
            return False
        await admin_tenants.resume_tenant(console.database, viewer.actor, tenant_id=tenant.id, reason=reason)
        toast_ok(f"{tenant.name} is active again.")
    return True
