"""The people of an organisation or of the platform: what their sign-ins must prove, and their open sessions."""

from functools import partial
from uuid import UUID

from nicegui import ui

from admin import second_factor, sign_in_rules
from admin import sessions as admin_sessions
from admin import users as admin_users
from console.components.base import Text, box, card, link_button
from console.components.dialogs import confirm, form_dialog, primary, secondary, text_input
from console.components.table import Column, actions_cell, cell, data_table, set_rows
from console.deps import Console
from console.layout import ROLE_NAMES
from console.panels.identity_provider import open_provider_form
from console.panels.session_rows import SESSION_COLUMNS, session_rows
from console.viewer import Viewer, toast_ok
from tenants.sign_in_rules import Rule
from tenants.views import UserView

_COLUMNS = (
    Column("email", "Person"),
    Column("role", "Role"),
    Column("status", "Status"),
    Column("factor", "Second factor"),
    Column("acts", ""),
)
PAGE_ROWS = 100
_RULES: dict[Rule, str] = {
    "password": "A password is enough.",
    "second_factor": "A second factor is required. People without one enrol it at the next sign-in.",
    "oidc": "People sign in through the identity provider only.",
}


async def people_panel(console: Console, viewer: Viewer, tenant_id: UUID | None) -> None:
    """Draw the people of an organisation, or of the platform (None)."""
    panel = _People(console, viewer, tenant_id)
    await panel.refresh()


class _People:
    """The table of people, and the rule above it."""

    def __init__(self, console: Console, viewer: Viewer, tenant_id: UUID | None) -> None:
        self._console, self._viewer, self._tenant_id = console, viewer, tenant_id
        self._after: UUID | None = None
        self._last: UUID | None = None
        self._manages = viewer.is_admin or viewer.role == "tenant_owner"
        whose = "the platform" if tenant_id is None else "the organisation"
        with card("People", f"Who signs in for {whose}, and how.", flush=True) as actions:
            self._actions = actions
            self._rule = Text("p", "", "muted rule")
            self._table = data_table(
                _COLUMNS, [], label="People", nothing="None.", on_action=viewer.act(self._act)
            )
        with box("div", "actions"):
            self._to_first = secondary(f"First {PAGE_ROWS}", viewer.act(partial(self._turn, False)))
            self._to_next = secondary(f"Next {PAGE_ROWS}", viewer.act(partial(self._turn, True)))

    async def refresh(self) -> None:
        """Read and show the present state."""
        database, actor = self._console.database, self._viewer.actor
        rule = (await sign_in_rules.get_rule(database, actor, tenant_id=self._tenant_id)).rule
        self._rule.text = _RULES[rule]
        self._actions.clear()
        if self._manages:
            with self._actions:
                here = "/account" if self._tenant_id == self._viewer.scope else f"/tenants/{self._tenant_id}"
                link_button("Access review", f"{here}/access-review.csv", "download", download=True)
                secondary("Identity provider", self._viewer.act(self._provider), icon="key")
                primary("How people sign in", self._viewer.act(partial(self._choose, rule)), icon="shield")
        people = await admin_users.list_users(
            database,
            actor,
            tenant_id=self._tenant_id,
            platform_only=self._tenant_id is None,
            limit=PAGE_ROWS + 1,  # one more shows that there is a next page
            after=self._after,
        )
        set_rows(
            self._table,
            [
                {
                    "id": str(one.id),
                    "email": cell(one.email),
                    "role": cell(ROLE_NAMES[one.role]),
                    "status": cell(one.status.capitalize()),
                    "factor": cell("on" if one.second_factor else "off"),
                    "acts": actions_cell(self._acts(one), one.email),
                }
                for one in people[:PAGE_ROWS]
            ],
        )
        self._last = people[:PAGE_ROWS][-1].id if people else None
        self._to_first.set_visibility(self._after is not None)
        self._to_next.set_visibility(len(people) > PAGE_ROWS)

    async def _turn(self, forward: bool) -> None:
        """Show the next page, or the first one."""
        self._after = self._last if forward else None
        await self.refresh()

    def _acts(self, one: UserView) -> list[tuple[str, str, str]]:
        if not self._manages or str(one.id) == self._viewer.actor.id:
            return []  # the own sessions are above
        acts = [("sessions", "Sessions", "")]
        if self._viewer.is_admin and one.second_factor:
            acts.append(("remove", "Remove second factor", "bad"))
        return acts

    async def _act(self, action: str, row: str) -> None:
        """Do what a row's button says."""
        await (self._show_sessions(UUID(row)) if action == "sessions" else self._remove(UUID(row)))

    async def _provider(self) -> None:
        """Open the form of the identity provider."""
        await open_provider_form(self._console, self._viewer, self._tenant_id, self.refresh)

    async def _choose(self, present: Rule) -> None:
        """Open the form of the rule."""

        async def save() -> bool:
            if not reason.value.strip():
                reason.error = "Say why: it goes to the audit log."
                return False
            done = await sign_in_rules.set_rule(
                self._console.database,
                self._viewer.actor,
                tenant_id=self._tenant_id,
                rule=str(rule.value),
                reason=reason.value,
            )
            toast_ok(f"Changed; {done.ended} sessions and tokens have ended.")
            await self._viewer.check()
            await self.refresh()
            return True

        sub = "Sessions and tokens that were opened with less end at once, yours included."
        with form_dialog("How people sign in", "Change", self._viewer, save, sub=sub):
            rule = ui.select(dict(_RULES), value=present, label="Rule").props("outlined dense")
            rule.classes("w-full")
            reason = text_input("Reason", hint="Kept in the audit log.").props("maxlength=500")

    async def _remove(self, user_id: UUID) -> None:
        """Remove a person's second factor after a question."""
        body = "Do this when the person has lost it. All their sessions and tokens end."
        reason = await confirm(self._viewer, "Remove this second factor?", body, "Remove", danger=True)
        if reason is None:
            return
        await second_factor.remove_for(
            self._console.database, self._viewer.actor, user_id=user_id, reason=reason
        )
        toast_ok("The second factor is removed.")
        await self.refresh()

    async def _show_sessions(self, user_id: UUID) -> None:
        """List a person's sessions in a dialog, where they can be ended."""
        database = self._console.database

        async def fill() -> None:
            set_rows(table, await session_rows(self._console, self._viewer, user_id))

        async def end(_: str, row: str) -> None:
            await admin_sessions.revoke_session(database, self._viewer.actor, session_id=UUID(row))
            await fill()

        async def end_all() -> None:
            await admin_sessions.end_sessions(database, self._viewer.actor, user_id=user_id)
            await fill()

        with ui.dialog() as dialog, ui.card().classes("dialog wide").props("flat"):
            dialog.props["aria-label"] = "Sessions of a person"
            Text("h2", "Open sessions")
            table = data_table(
                SESSION_COLUMNS,
                [],
                label="Sessions of the person",
                nothing="None.",
                on_action=self._viewer.act(end),
            )
            with box("div", "actions"):
                primary("End all", self._viewer.act(end_all), danger=True)
                secondary("Close", dialog.close)
        dialog.on("hide", dialog.delete)
        await fill()
        dialog.open()
