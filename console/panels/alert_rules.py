"""Budgets and low-balance alerts: their state, and the forms that set them."""

import asyncio
from collections.abc import Sequence
from decimal import Decimal
from uuid import UUID

from nicegui import ui

from admin import alerts as admin_alerts
from admin import keys as admin_keys
from admin import projects as admin_projects
from billing.notifications.alerts import THRESHOLDS, AlertView
from console.components.base import box, card
from console.components.dialogs import confirm, form_dialog, secondary, text_input
from console.components.table import Column, Row, actions_cell, cell, data_table
from console.deps import Console
from console.format import money
from console.panels.amounts import parse_usd
from console.viewer import Viewer, toast_ok

SCOPES = {
    "tenant": "Whole organisation",
    "project": "Project",
    "key": "Key",
    "end_user": "End user",
    "tag": "Tag",
}
BUDGETS = {
    "tenant": "budget; it stops requests",
    "project": "budget of a project",
    "key": "budget of a key",
    "end_user": "budget of an end user",
    "tag": "budget of a tag",
}
_COLUMNS = (
    Column("what", "Watched"),
    Column("amount", "Budget or mark", numeric=True),
    Column("current", "Now", numeric=True),
    Column("marks", "Told at"),
    Column("acts", ""),
)


def parse_thresholds(text: str) -> list[int]:
    """Sorted percentages (1 to 1000) from user input such as "50, 80, 100". Raises ValueError with a user message."""
    parts = [part.strip().removesuffix("%").strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 1 <= int(part[:6]) <= 1000 for part in parts):
        raise ValueError("Percentages with commas, such as 50, 80, 100.")
    return sorted({int(part) for part in parts})


def used(rule: AlertView) -> float | None:
    """The spent share of a budget (1.0 = all of it); None for rules without an amount."""
    if rule.kind != "budget" or rule.amount_usd is None or not Decimal(rule.amount_usd):
        return None
    return float(Decimal(rule.current_usd) / Decimal(rule.amount_usd))


class AlertRulesPanel:
    """The budgets and low-balance alerts of one organisation."""

    def __init__(self, console: Console, viewer: Viewer, tenant_id: UUID) -> None:
        self.console = console
        self.viewer = viewer
        self.tenant_id = tenant_id
        self.may_set = viewer.may_bill or viewer.role == "tenant_owner"
        self.names: dict[UUID, str] = {}
        self.rules: list[AlertView] = []
        self.place: ui.element

    async def draw(self) -> None:
        """Create the card."""
        self.place = box("div", "stack")
        await self.reload()

    async def reload(self) -> None:
        """Read and show the present state."""
        database, actor = self.console.database, self.viewer.actor
        self.rules, projects, keys = await asyncio.gather(
            admin_alerts.list_alerts(database, actor, tenant_id=self.tenant_id),
            admin_projects.list_projects(database, actor, tenant_id=self.tenant_id),
            admin_keys.list_keys(database, actor, tenant_id=self.tenant_id),
        )
        self.names = {one.id: one.name for one in projects}
        self.names |= {one.id: f"{one.name} …{one.last4}" for one in keys if one.status == "active"}
        self.projects = {str(one.id): one.name for one in projects}
        self.keys = {str(one.id): f"{one.name} …{one.last4}" for one in keys if one.status == "active"}
        self.place.clear()
        with self.place:
            self._show()

    def _show(self) -> None:
        sub = "The organisation's own budget stops requests; the others only tell. Months are UTC months."
        with card("Budgets and marks", sub, flush=True) as actions:
            if self.may_set:
                with actions:
                    secondary("New budget", self.viewer.act(self.new_budget), icon="savings")
                    secondary("Low balance", self.viewer.act(self.low_balance), icon="notifications")
            data_table(
                _COLUMNS,
                [self._row(rule) for rule in self.rules],
                label="Budgets and marks",
                nothing="Nothing is watched yet. A budget tells you at 50, 80 and 100 percent.",
                on_action=self.viewer.act(self._act),
            )

    def _row(self, rule: AlertView) -> Row:
        acts = [("remove", "Remove", "bad")] if self.may_set and rule.id is not None else []
        name = self.names.get(rule.scope_id, _name(rule))
        return {
            "id": f"{rule.kind} {rule.scope_id}",
            **rule_cells(rule, name),
            "acts": actions_cell(acts, name),
        }

    async def _act(self, _: str, row: str) -> None:
        kind, _space, scope = row.partition(" ")
        rule = next((one for one in self.rules if f"{one.kind} {one.scope_id}" == f"{kind} {scope}"), None)
        if rule is None:
            return
        answer = await confirm(
            self.viewer,
            "Remove this alert?",
            "No more notices are sent. The organisation's own budget itself stays as it is.",
            "Remove",
            danger=True,
            needs_reason=False,
        )
        if answer is None:
            return
        await admin_alerts.remove_alert(
            self.console.database,
            self.viewer.actor,
            tenant_id=self.tenant_id,
            kind="budget" if rule.kind == "budget" else "low_balance",
            scope_id=rule.scope_id,
        )
        await self.reload()

    async def new_budget(self) -> None:
        """Open the form of a budget: scope, amount and percentages."""
        objects = {"tenant": "Whole organisation (thresholds only)"}
        objects |= {f"project {one}": f"Project {name}" for one, name in self.projects.items()}
        objects |= {f"key {one}": f"Key {name}" for one, name in self.keys.items()}

        async def save() -> bool:
            scope, _, scope_id = str(watched.value).partition(" ")
            usd, thresholds = None, []
            amount.error = percentages.error = None
            try:
                usd = parse_usd(amount.value or "") if scope != "tenant" else None
            except ValueError as error:
                amount.error = str(error)
            try:
                thresholds = parse_thresholds(percentages.value or "")
            except ValueError as error:
                percentages.error = str(error)
            if amount.error or percentages.error:
                return False
            await admin_alerts.set_alert(
                self.console.database,
                self.viewer.actor,
                tenant_id=self.tenant_id,
                kind="budget",
                scope="project" if scope == "project" else "key" if scope == "key" else "tenant",
                scope_id=UUID(scope_id) if scope_id else None,
                amount_usd=usd,
                thresholds=thresholds,
            )
            toast_ok("The budget is watched.")
            await self.reload()
            return True

        with form_dialog(
            "New budget",
            "Watch it",
            self.viewer,
            save,
            sub="All people below “Who is told” are told when the month's spending reaches a percentage.",
        ):
            first = next((one for one in objects if one != "tenant"), "tenant")
            watched = ui.select(objects, value=first, label="Watched").props("outlined dense")
            amount = text_input("US dollars a month").props("inputmode=decimal prefix=$")
            percentages = text_input("Told at, in percent", ", ".join(map(str, THRESHOLDS)))
            amount.bind_visibility_from(watched, "value", backward=lambda value: value != "tenant")

    async def low_balance(self) -> None:
        """Open the form of the low-balance alert: the amount below which it is sent."""
        present = next((one for one in self.rules if one.kind == "low_balance"), None)

        async def save() -> bool:
            try:
                usd = parse_usd(amount.value or "")
                amount.error = None
            except ValueError as error:
                amount.error = str(error)
                return False
            await admin_alerts.set_alert(
                self.console.database,
                self.viewer.actor,
                tenant_id=self.tenant_id,
                kind="low_balance",
                amount_usd=usd,
            )
            toast_ok("A low balance is told.")
            await self.reload()
            return True

        with form_dialog("Low balance", "Watch it", self.viewer, save, sub="For prepaid organisations."):
            amount = text_input("When less is left than", (present.amount_usd if present else "") or "")
            amount.props("autofocus inputmode=decimal prefix=$")


def rule_cells(rule: AlertView, name: str) -> Row:
    """The cells that all tables of rules share."""
    share = used(rule)
    fired = ", ".join(f"{one}%" for one in rule.fired)
    thresholds = ", ".join(f"{one}%" for one in rule.thresholds)
    low = rule.kind == "low_balance"
    below = low and rule.amount_usd is not None and Decimal(rule.current_usd) < Decimal(rule.amount_usd)
    return {
        "what": cell(name, sub="low balance" if low else BUDGETS[rule.scope]),
        "amount": cell(money(rule.amount_usd)),
        "current": cell(money(rule.current_usd), bar=share, sub="below the mark" if below else ""),
        "marks": cell("below the mark" if low else thresholds, sub=f"told at {fired}" if fired else ""),
    }


def _name(rule: AlertView) -> str:
    """The end user or tag of a rule, or what kind of scope it has."""
    return SCOPES[rule.scope] if rule.label is None else rule.label.removeprefix("user=")


async def all_rules(console: Console, viewer: Viewer, names: dict[UUID, str]) -> None:
    """Draw the rules of all organisations for platform roles, those with the highest used share first."""
    rules = await admin_alerts.list_alerts(console.database, viewer.actor)
    with card("Budgets and marks of all tenants", "Set them on a tenant's page.", flush=True):
        data_table(
            [Column("tenant", "Tenant"), *_COLUMNS[:-1]],
            _all_rows(rules, names),
            label="Budgets and marks of all tenants",
            nothing="No tenant has a budget or a mark.",
        )


def _all_rows(rules: Sequence[AlertView], names: dict[UUID, str]) -> list[Row]:
    ordered = sorted(rules, key=lambda rule: -(used(rule) or 0.0))
    return [
        {
            "id": str(number),
            "tenant": cell(names.get(rule.tenant_id, "–"), href=f"/tenants/{rule.tenant_id}?tab=alerts"),
            **rule_cells(rule, _name(rule)),
        }
        for number, rule in enumerate(ordered)
    ]
