"""The audit log: who changed what, when and why, with the state before and after."""

from collections.abc import Sequence
from uuid import UUID

from fastapi import Request
from nicegui import ui

from admin import audit as admin_audit
from admin import tenants as admin_tenants
from console.components.base import Text, as_text, box, card, description_list, page_head
from console.components.dialogs import secondary
from console.components.table import Column, Row, actions_cell, cell, data_table, set_rows
from console.deps import Console
from console.format import moment, short_id, words
from console.viewer import Viewer
from tenants.views import AuditEntry

PAGE_ROWS = 500
"""Rows per page view; the filters apply on the server."""
_COLUMNS = (
    Column("at", "When"),
    Column("actor", "Who"),
    Column("action", "What"),
    Column("object", "On"),
    Column("tenant", "Tenant"),
    Column("reason", "Reason", sortable=False),
    Column("acts", ""),
)


async def build(console: Console, viewer: Viewer, request: Request) -> None:
    """Draw the log with its filters."""
    tenants = await admin_tenants.list_tenants(console.database, viewer.actor)
    names = {str(tenant.id): tenant.name for tenant in tenants}
    with page_head(
        "Audit log", "Every administrative act, with its reason. Rows cannot be changed or deleted."
    ):
        pass
    found: dict[str, AuditEntry] = {}

    async def rows() -> list[Row]:
        tenant_id = UUID(tenant.value) if tenant.value else None
        entries = await admin_audit.list_audit(
            console.database, viewer.actor, tenant_id=tenant_id, action=action.value or None, limit=PAGE_ROWS
        )
        found.clear()
        found.update({str(entry.id): entry for entry in entries})
        return audit_rows(console, entries, names)

    async def reload() -> None:
        set_rows(table, await rows())

    async def detail(_: str, row: str) -> None:
        if row in found:
            show_entry(found[row], names)

    with box("div", "filters"):
        search = (
            ui.input("Search", placeholder="Person, act, reason")
            .props("outlined dense clearable")
            .classes("search")
        )
        tenant = ui.select(
            {"": "All tenants", **names}, value="", label="Tenant", on_change=viewer.act(reload)
        )
        tenant.props("outlined dense")
        action = ui.input("Act", placeholder="tenant.suspend").props("outlined dense clearable debounce=400")
        action.on_value_change(viewer.act(reload))
    with card(flush=True):
        table = data_table(
            _COLUMNS,
            await rows(),
            label="Audit log",
            nothing="Nothing has been recorded yet.",
            on_action=viewer.act(detail),
            sort_by="at",
            descending=True,
        )
    search.bind_value_to(table, "filter")


def audit_rows(console: Console, entries: Sequence[AuditEntry], names: dict[str, str]) -> list[Row]:
    """Table rows of audit entries."""
    now = console.clock.now()
    rows = []
    for entry in entries:
        tenant = "" if entry.tenant_id is None else str(entry.tenant_id)
        rows.append(
            {
                "id": str(entry.id),
                "at": cell(moment(entry.at, now)),
                "actor": cell(entry.actor_label, sub=entry.actor_kind),
                "action": cell(words(entry.action)),
                "object": cell(short_id(entry.object_id), sub=words(entry.object_kind)),
                "tenant": cell(names.get(tenant, "–"), href=f"/tenants/{tenant}" if tenant in names else ""),
                "reason": cell(entry.reason or "–", wrap=True),
                "acts": actions_cell([("detail", "Detail", "")], f"of {entry.action}"),
            }
        )
    return rows


def show_entry(entry: AuditEntry, names: dict[str, str]) -> None:
    """Show one entry in a dialog, with the state before and after by field."""
    with ui.dialog() as dialog, ui.card().classes("dialog wide").props("flat"):
        Text("h2", words(entry.action).capitalize())
        description_list(
            [
                ("When", entry.at.strftime("%Y-%m-%d %H:%M:%S UTC")),
                ("Who", f"{entry.actor_label} ({entry.actor_kind})"),
                ("On", f"{words(entry.object_kind)} {entry.object_id}"),
                ("Tenant", names.get(str(entry.tenant_id), "–")),
                ("Reason", entry.reason or "–"),
            ]
        )
        _diff(entry.before or {}, entry.after or {})
        with box("div", "actions"):
            secondary("Close", dialog.close)
    dialog.on("hide", dialog.delete)
    dialog.open()


def _diff(before: dict[str, object], after: dict[str, object]) -> None:
    fields = list(dict.fromkeys([*before, *after]))
    if not fields:
        Text("p", "The act changed no recorded field.", "muted")
        return
    with box("div").style("overflow-x: auto"), box("table", "diff"):
        with box("thead"), box("tr"):
            for head in ("Field", "Before", "After"):
                Text("th", head)
        with box("tbody"):
            for field in fields:
                was, now = before.get(field), after.get(field)
                changed = was != now
                with box("tr"):
                    Text("td", field)
                    Text("td", as_text(was) if field in before else "–", "was" if changed and before else "")
                    Text("td", as_text(now) if field in after else "–", "is" if changed else "")
