"""Limits of one organisation, its projects and keys, with their present use."""

import asyncio
from uuid import UUID

from nicegui import ui

from admin import keys as admin_keys
from admin import limits as admin_limits
from admin import projects as admin_projects
from console.components.base import card
from console.components.dialogs import form_dialog, text_input
from console.components.table import Cell, Column, Row, actions_cell, cell, data_table, set_rows
from console.deps import Console
from console.format import Formatted, count
from console.live_limits import InUse, limits_in_use
from console.viewer import Viewer, toast_ok
from tenants.principal import NO_LIMITS, Limits

REFRESH_S = 2.0
FIELDS = {
    "requests_per_min": "Requests/min",
    "input_tokens_per_min": "Input tokens/min",
    "output_tokens_per_min": "Output tokens/min",
    "concurrency": "Open requests",
    "tokens_per_day": "Tokens/day",
}
_COLUMNS = (
    Column("scope", "Applies to"),
    *(Column(name, label, numeric=True) for name, label in FIELDS.items()),
    Column("acts", ""),
)


def parse_limit(text: str) -> int | None:
    """A whole number above 0 from user input, or None when empty. Blanks and commas may group digits.

    Raises ValueError with a user message.
    """
    digits = text.strip().replace(",", "").replace(" ", "").replace("\u202f", "")
    if not digits:
        return None
    if not (digits.isascii() and digits.isdigit()) or int(digits) == 0 or len(digits) > 15:
        raise ValueError("A whole number above zero, or empty for no limit.")
    return int(digits)


def limits_text(limits: Limits) -> str:
    """Limits in words, such as "3,000 requests/min, 512 open requests"."""
    values = ((getattr(limits, field), label.lower()) for field, label in FIELDS.items())
    return ", ".join(f"{value:,} {label}" for value, label in values if value is not None) or "none"


async def limits_panel(console: Console, viewer: Viewer, tenant_id: UUID) -> None:
    """Draw the table of limits; owners and platform admins may edit."""
    panel = _LimitsPanel(console, viewer, tenant_id)
    await panel.draw()


class _LimitsPanel:
    """Every scope with its limits and an edit action."""

    def __init__(self, console: Console, viewer: Viewer, tenant_id: UUID) -> None:
        self.console = console
        self.viewer = viewer
        self.tenant_id = tenant_id
        self.editable = {
            "platform_admin": ("tenant", "project", "key"),
            "tenant_owner": ("project", "key"),
        }.get(viewer.role, ())
        self.scopes: dict[str, tuple[str, UUID, str]] = {}
        self.limits: dict[str, Limits] = {}
        self.table: ui.table

    async def draw(self) -> None:
        """Create the card."""
        with card(
            "Limits",
            "In use and allowed. A request must fit all three: its key's, its project's and the organisation's.",
            flush=True,
        ):
            self.table = data_table(
                _COLUMNS,
                await self.rows(),
                label="Limits",
                nothing="No limits.",
                on_action=self.viewer.act(self.edit),
            )
        self.viewer.live(REFRESH_S, self.refresh)

    async def refresh(self) -> None:
        """Update the present use."""
        set_rows(self.table, await self._filled())

    async def rows(self) -> list[Row]:
        """Read the limits of all scopes, as table rows."""
        database, actor = self.console.database, self.viewer.actor
        projects, keys, limits = await asyncio.gather(
            admin_projects.list_projects(database, actor, tenant_id=self.tenant_id),
            admin_keys.list_keys(database, actor, tenant_id=self.tenant_id),
            admin_limits.list_limits(database, actor, tenant_id=self.tenant_id),
        )
        scopes: list[tuple[str, UUID, str]] = [("tenant", self.tenant_id, "Whole organisation")]
        scopes += [("project", one.id, one.name) for one in projects if one.status == "active"]
        scopes += [("key", one.id, f"{one.name} …{one.last4}") for one in keys if one.status == "active"]
        self.scopes = {str(scope[1]): scope for scope in scopes}
        self.limits = {str(one.scope_id): one.limits for one in limits}
        return await self._filled()

    async def _filled(self) -> list[Row]:
        asked = [(kind, scope_id, self._limits_of(scope_id)) for kind, scope_id, _ in self.scopes.values()]
        used = await limits_in_use(self.console.redis, self.tenant_id, asked, self.console.clock.now())
        return [self._row(*scope, used[scope[1]]) for scope in self.scopes.values()]

    def _limits_of(self, scope_id: UUID) -> Limits:
        return self.limits.get(str(scope_id), NO_LIMITS)

    def _row(self, kind: str, scope_id: UUID, name: str, used: InUse) -> Row:
        limits = self._limits_of(scope_id)
        row: Row = {
            "id": str(scope_id),
            "scope": cell(name, sub=kind.capitalize() if kind != "tenant" else ""),
        }
        for field in FIELDS:
            row[field] = self._limit_cell(getattr(used, field), getattr(limits, field))
        row["acts"] = actions_cell(
            [("edit", "Edit", "")] if kind in self.editable else [], f"limits of {name}"
        )
        return row

    @staticmethod
    def _limit_cell(used: int | None, limit: int | None) -> Cell:
        if limit is None or used is None:
            return cell(Formatted("No limit", "", float("inf")))
        label = f"{count(used).text} of {count(limit).text}"
        return cell(Formatted(label, f"{used:,} of {limit:,}", limit), bar=used / limit)

    async def edit(self, _: str, row: str) -> None:
        """Edit the limits of one scope."""
        if row not in self.scopes:
            return
        kind, scope_id, name = self.scopes[row]
        limits = self.limits.get(row, NO_LIMITS)
        inputs: dict[str, ui.input] = {}

        async def save() -> bool:
            values: dict[str, int | None] = {}
            for field, box in inputs.items():
                try:
                    values[field] = parse_limit(box.value or "")
                    box.error = None
                except ValueError as error:
                    box.error = str(error)
            if any(box.error for box in inputs.values()):
                return False
            await admin_limits.set_limits(
                self.console.database,
                self.viewer.actor,
                tenant_id=self.tenant_id,
                scope_kind=kind,
                scope_id=scope_id,
                limits=Limits(**values),
            )
            toast_ok(f"Limits of {name} are set; they hold within seconds.")
            set_rows(self.table, await self.rows())
            return True

        with (
            form_dialog(
                f"Limits of {name}", "Set limits", self.viewer, save, sub="Leave a field empty for no limit."
            ),
            ui.element("div").classes("fields"),
        ):
            for field, label in FIELDS.items():
                present = getattr(limits, field)
                inputs[field] = text_input(label, "" if present is None else str(present)).props(
                    "inputmode=numeric"
                )
