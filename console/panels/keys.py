"""Projects and API keys of one organisation: create (the key is shown once), revoke, archive."""

import asyncio
from datetime import timedelta
from uuid import UUID

from nicegui import ui

from admin import keys as admin_keys
from admin import projects as admin_projects
from console.components.base import card
from console.components.dialogs import confirm, form_dialog, primary, secondary, show_secret, text_input
from console.components.table import Column, Row, actions_cell, cell, data_table, set_rows
from console.deps import Console
from console.format import count, moment
from console.viewer import Viewer, toast_ok
from tenants.views import KeyView, ProjectView

KEY_TONES = {"active": "ok", "revoked": "bad", "expired": "warn"}
KINDS = {"live": "Live", "test": "Test"}
LIFETIMES = {0: "Never", 7: "In 7 days", 30: "In 30 days", 90: "In 90 days", 365: "In one year"}

_KEY_COLUMNS = (
    Column("name", "Key"),
    Column("project", "Project"),
    Column("kind", "Kind"),
    Column("status", "Status"),
    Column("models", "Models", sortable=False),
    Column("used", "Last used", numeric=True),
    Column("expires", "Expires", numeric=True),
    Column("created", "Created", numeric=True),
    Column("acts", ""),
)
_PROJECT_COLUMNS = (
    Column("name", "Project"),
    Column("status", "Status"),
    Column("keys", "Active keys", numeric=True),
    Column("created", "Created", numeric=True),
    Column("acts", ""),
)


async def keys_panel(console: Console, viewer: Viewer, tenant_id: UUID) -> None:
    """Draw keys and projects, with buttons for roles that the admin functions admit."""
    panel = _KeysPanel(console, viewer, tenant_id)
    await panel.draw()


class _KeysPanel:
    """The tables of keys and projects with their actions."""

    def __init__(self, console: Console, viewer: Viewer, tenant_id: UUID) -> None:
        self.console = console
        self.viewer = viewer
        self.tenant_id = tenant_id
        self.may_make_keys = viewer.role in ("platform_admin", "tenant_owner", "tenant_developer")
        self.may_run = viewer.role in ("platform_admin", "tenant_owner")
        self.projects: list[ProjectView] = []
        self.keys: list[KeyView] = []
        self.key_table: ui.table
        self.project_table: ui.table

    async def draw(self) -> None:
        """Create both cards."""
        await self.read()
        act = self.viewer.act
        with card(
            "API keys",
            "A key is shown once, when it is made. Only its last four characters are kept.",
            flush=True,
        ) as actions:
            if self.may_make_keys:
                with actions:
                    primary("New key", act(self.create_key), icon="add")
            self.key_table = data_table(
                _KEY_COLUMNS,
                self.key_rows(),
                label="API keys",
                nothing="No key yet. Make one to send the first request.",
                on_action=act(self.key_act),
            )
        with card("Projects", "Keys, limits and usage are grouped by project.", flush=True) as actions:
            if self.may_run:
                with actions:
                    secondary("New project", act(self.create_project), icon="add")
            self.project_table = data_table(
                _PROJECT_COLUMNS,
                self.project_rows(),
                label="Projects",
                nothing="No project yet.",
                on_action=act(self.project_act),
            )

    async def read(self) -> None:
        """Read projects and keys."""
        database, actor = self.console.database, self.viewer.actor
        self.projects, self.keys = await asyncio.gather(
            admin_projects.list_projects(database, actor, tenant_id=self.tenant_id),
            admin_keys.list_keys(database, actor, tenant_id=self.tenant_id),
        )

    async def reload(self) -> None:
        """Read and show the present state."""
        await self.read()
        set_rows(self.key_table, self.key_rows())
        set_rows(self.project_table, self.project_rows())

    def key_rows(self) -> list[Row]:
        """Rows of the key table."""
        now = self.console.clock.now()
        rows = []
        for key in self.keys:
            acts = [("revoke", "Revoke", "bad")] if key.status == "active" and self.may_make_keys else []
            rows.append(
                {
                    "id": str(key.id),
                    "name": cell(key.name, sub=f"pen_{key.kind}_…{key.last4}"),
                    "project": cell(key.project),
                    "kind": cell(KINDS[key.kind]),
                    "status": cell(key.status.capitalize(), tone=KEY_TONES.get(key.status, "idle")),
                    "models": cell(", ".join(key.allowed_models) if key.allowed_models else "All"),
                    "used": cell(moment(key.last_used_at, now)),
                    "expires": cell(moment(key.expires_at, now)),
                    "created": cell(moment(key.created_at, now)),
                    "acts": actions_cell(acts, f"key {key.name}"),
                }
            )
        return rows

    def project_rows(self) -> list[Row]:
        """Rows of the project table."""
        now = self.console.clock.now()
        rows = []
        for project in self.projects:
            active = sum(key.project_id == project.id and key.status == "active" for key in self.keys)
            acts = [("archive", "Archive", "bad")] if project.status == "active" and self.may_run else []
            rows.append(
                {
                    "id": str(project.id),
                    "name": cell(project.name),
                    "status": cell(
                        project.status.capitalize(), tone="ok" if project.status == "active" else "idle"
                    ),
                    "keys": cell(count(active)),
                    "created": cell(moment(project.created_at, now)),
                    "acts": actions_cell(acts, f"project {project.name}"),
                }
            )
        return rows

    async def create_key(self) -> None:
        """Open the form of a new key; show the key once after saving."""
        open_projects = {str(one.id): one.name for one in self.projects if one.status == "active"}

        async def save() -> bool:
            if not name.value.strip():
                name.error = "Give the key a name, such as the program that will use it."
                return False
            days = int(lifetime.value)
            models = sorted({one.strip() for one in (allowed.value or "").split(",") if one.strip()})
            created = await admin_keys.create_key(
                self.console.database,
                self.viewer.actor,
                pepper=self.console.key_pepper,
                tenant_id=self.tenant_id,
                project_id=UUID(project.value),
                name=name.value.strip(),
                expires_at=self.console.clock.now() + timedelta(days=days) if days else None,
                allowed_models=models or None,
            )
            await self.reload()
            show_secret(
                "Store this key now",
                "It is shown this once. Only a hash of it is stored, so it cannot be looked up later.",
                created.secret,
            )
            return True

        with form_dialog("New API key", "Create key", self.viewer, save):
            name = text_input("Name").props("autofocus maxlength=100")
            with ui.element("div").classes("fields"):
                project = ui.select(open_projects, value=next(iter(open_projects), None), label="Project")
                lifetime = ui.select(LIFETIMES, value=0, label="Expires")
                for field in (project, lifetime):
                    field.props("outlined dense")
            allowed = text_input("Models", hint="Names separated by commas; empty allows all.")

    async def key_act(self, _: str, row: str) -> None:
        """Revoke the key of a row."""
        key = next((one for one in self.keys if str(one.id) == row), None)
        if key is None:
            return
        reason = await confirm(
            self.viewer,
            f"Revoke {key.name}?",
            "It stops working within seconds and its running streams are cut. This cannot be undone.",
            "Revoke",
            danger=True,
        )
        if reason is None:
            return
        await admin_keys.revoke_key(self.console.database, self.viewer.actor, key_id=key.id, reason=reason)
        toast_ok(f"{key.name} is revoked.")
        await self.reload()

    async def create_project(self) -> None:
        """Open the form of a new project."""

        async def save() -> bool:
            if not name.value.strip():
                name.error = "Give the project a name."
                return False
            await admin_projects.create_project(
                self.console.database, self.viewer.actor, tenant_id=self.tenant_id, name=name.value.strip()
            )
            toast_ok(f"Project {name.value.strip()} is ready.")
            await self.reload()
            return True

        with form_dialog("New project", "Create project", self.viewer, save):
            name = text_input("Name").props("autofocus maxlength=100")

    async def project_act(self, _: str, row: str) -> None:
        """Archive the project of a row."""
        project = next((one for one in self.projects if str(one.id) == row), None)
        if project is None:
            return
        reason = await confirm(
            self.viewer,
            f"Archive {project.name}?",
            "Its keys stop working. Its usage stays on the report.",
            "Archive",
            danger=True,
        )
        if reason is None:
            return
        await admin_projects.archive_project(
            self.console.database,
            self.viewer.actor,
            tenant_id=self.tenant_id,
            project_id=project.id,
            reason=reason,
        )
        toast_ok(f"{project.name} is archived.")
        await self.reload()
