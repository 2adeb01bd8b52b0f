"""The own account: the second factor, open sessions and tokens, each with its end; for who manages people, those."""

from uuid import UUID

from fastapi import Request
from nicegui import ui

from admin import logins as admin_logins
from admin import sessions as admin_sessions
from admin.logins import TokenLives
from console.components.base import card, page_head
from console.components.dialogs import confirm, form_dialog, primary, show_secret, text_input
from console.components.table import Column, actions_cell, cell, data_table, set_rows
from console.deps import Console
from console.format import moment
from console.panels.people import people_panel
from console.panels.second_factor import SecondFactorCard
from console.panels.session_rows import SESSION_COLUMNS, session_rows
from console.viewer import Viewer, toast_ok
from tenants.token_scopes import ALL_SCOPES, DEFAULT_SCOPES

_SCOPES = {
    "read": "read: requests that change nothing",
    "write": "write: all but people, invitations, passwords and tokens",
    "access": "access: everything that your role allows",
}
_TOKEN_COLUMNS = (
    Column("name", "Name"),
    Column("scopes", "Scopes"),
    Column("made", "Made", numeric=True),
    Column("used", "Last used", numeric=True),
    Column("ends", "Ends", numeric=True),
    Column("acts", ""),
)


async def build(console: Console, viewer: Viewer, request: Request) -> None:
    """Draw the second factor and both tables."""
    with page_head("Account", f"Signed in as {viewer.session.email}."):
        pass
    factor = SecondFactorCard(console, viewer)
    sessions, tokens = _Sessions(console, viewer), _Tokens(console, viewer)
    await factor.refresh()
    await sessions.refresh()
    await tokens.refresh()
    if viewer.is_admin or viewer.role == "tenant_owner":
        await people_panel(console, viewer, viewer.scope)


class _Sessions:
    """The open sessions."""

    def __init__(self, console: Console, viewer: Viewer) -> None:
        self._console, self._viewer = console, viewer
        sub = "Where you are signed in. A session that you do not know: end it and change your password."
        with card("Sessions", sub, flush=True) as actions:
            with actions:
                primary("End all others", viewer.act(self._end_others), danger=True)
            self._table = data_table(
                SESSION_COLUMNS, [], label="Sessions", nothing="None.", on_action=viewer.act(self._end)
            )

    async def refresh(self) -> None:
        """Read and show the present state."""
        rows = await session_rows(
            self._console, self._viewer, UUID(self._viewer.actor.id), current=self._viewer.session.id
        )
        set_rows(self._table, rows)

    async def _end(self, _: str, row: str) -> None:
        """End a row's session."""
        await admin_sessions.revoke_session(self._console.database, self._viewer.actor, session_id=UUID(row))
        toast_ok("The session has ended.")
        await self.refresh()

    async def _end_others(self) -> None:
        """End all sessions but this one."""
        body = "You stay signed in here, and are signed out everywhere else. Tokens stay."
        title, action = "End all other sessions?", "End all others"
        if await confirm(self._viewer, title, body, action, danger=True, needs_reason=False) is None:
            return
        await admin_sessions.end_sessions(
            self._console.database, self._viewer.actor, but=self._viewer.session.id
        )
        toast_ok("All other sessions have ended.")
        await self.refresh()


class _Tokens:
    """The tokens that are neither revoked nor expired."""

    def __init__(self, console: Console, viewer: Viewer) -> None:
        self._console, self._viewer = console, viewer
        with card("Tokens", "For programs that use the admin REST as you.", flush=True) as actions:
            with actions:
                primary("New token", viewer.act(self._new), icon="add")
            self._table = data_table(
                _TOKEN_COLUMNS, [], label="Tokens", nothing="None.", on_action=viewer.act(self._revoke)
            )

    async def refresh(self) -> None:
        """Read and show the present state."""
        now = self._console.clock.now()
        tokens = await admin_logins.list_admin_tokens(
            self._console.database, self._viewer.actor, user_id=UUID(self._viewer.actor.id)
        )
        set_rows(
            self._table,
            [
                {
                    "id": str(one.id),
                    "name": cell(one.name, sub=f"…{one.last4}"),
                    "scopes": cell(", ".join(one.scopes)),
                    "made": cell(moment(one.created_at, now)),
                    "used": cell("never" if one.last_used_at is None else moment(one.last_used_at, now)),
                    "ends": cell(moment(one.expires_at, now)),
                    "acts": actions_cell([("revoke", "Revoke", "bad")], f"token {one.name}"),
                }
                for one in tokens
                if one.revoked_at is None and one.expires_at > now
            ],
        )

    async def _new(self) -> None:
        """Open the form of a new token; show the token once after saving."""
        lives = TokenLives.of(self._console.settings)

        async def save() -> bool:
            if not days.value.strip().isdecimal():
                days.error = "Give a whole number of days."
                return False
            made = await admin_logins.create_admin_token(
                self._console.database,
                self._viewer.actor,
                pepper=self._console.key_pepper,
                user_id=UUID(self._viewer.actor.id),
                name=name.value,
                scopes=[scope.value],
                days=int(days.value),
                lives=lives,
            )
            await self.refresh()
            body = f"{made.view.name} acts as you. It is shown this once: only a hash of it is stored."
            show_secret("Store this token now", body, made.secret)
            return True

        with form_dialog("New token", "Create token", self._viewer, save):
            name = text_input("Name", hint="What it is for.").props("autofocus maxlength=100")
            scope = ui.select(
                {each: _SCOPES[each] for each in ALL_SCOPES}, value=DEFAULT_SCOPES[-1], label="Scope"
            )
            scope.props("outlined dense").classes("w-full")
            days = text_input("Days until it ends", str(lives.days(None)), hint=f"At most {lives.longest}.")

    async def _revoke(self, _: str, row: str) -> None:
        """Revoke a row's token."""
        body = "Programs that use it are refused at once."
        if (
            await confirm(self._viewer, "Revoke this token?", body, "Revoke", danger=True, needs_reason=False)
            is None
        ):
            return
        await admin_logins.revoke_admin_token(self._console.database, self._viewer.actor, token_id=UUID(row))
        toast_ok("The token is revoked.")
        await self.refresh()
