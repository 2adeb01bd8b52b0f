"""The own account: the second factor, open sessions and tokens of the admin REST, each with its end."""

from uuid import UUID

from fastapi import Request
from nicegui import ui

from admin import logins as admin_logins
from admin import sessions as admin_sessions
from admin.logins import TokenLives
from console.components.base import card, page_head
from console.components.dialogs import confirm, form_dialog, primary, show_secret, text_input
from console.components.table import Column, Row, actions_cell, cell, data_table, set_rows
from console.deps import Console
from console.format import moment
from console.panels.second_factor import SecondFactorCard
from console.viewer import Viewer, toast_ok
from tenants.token_scopes import ALL_SCOPES, DEFAULT_SCOPES

_KINDS = {"console": "Console", "session": "REST"}
_SCOPES = {
    "read": "read: requests that change nothing",
    "write": "write: all but people, invitations, passwords and tokens",
    "access": "access: everything that your role allows",
}
_SESSION_COLUMNS = (
    Column("opened", "Opened"),
    Column("kind", "Kind"),
    Column("from", "From"),
    Column("used", "Last used", numeric=True),
    Column("ends", "Ends", numeric=True),
    Column("acts", ""),
)
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


class _Sessions:
    """The open sessions."""

    def __init__(self, console: Console, viewer: Viewer) -> None:
        self._console, self._viewer = console, viewer
        sub = "Where you are signed in. A session that you do not know: end it and change your password."
        with card("Sessions", sub, flush=True) as actions:
            with actions:
                primary("End all", viewer.act(self._end_all), danger=True)
            self._table = data_table(
                _SESSION_COLUMNS, [], label="Sessions", nothing="None.", on_action=viewer.act(self._end)
            )

    async def refresh(self) -> None:
        """Read and show the present state."""
        now = self._console.clock.now()
        rows: list[Row] = []
        for one in await admin_sessions.list_sessions(
            self._console.database, self._viewer.actor, user_id=UUID(self._viewer.actor.id), now=now
        ):
            current = one.id == self._viewer.session.id
            rows.append(
                {
                    "id": str(one.id),
                    "opened": cell(moment(one.created_at, now), sub="this session" if current else ""),
                    "kind": cell(_KINDS[one.kind]),
                    "from": cell(one.address or "not known", sub=one.client[:80]),
                    "used": cell(moment(one.last_used_at or one.created_at, now)),
                    "ends": cell(moment(one.expires_at, now)),
                    "acts": actions_cell([] if current else [("end", "End", "bad")], "session"),
                }
            )
        set_rows(self._table, rows)

    async def _end(self, _: str, row: str) -> None:
        """End a row's session."""
        await admin_sessions.revoke_session(self._console.database, self._viewer.actor, session_id=UUID(row))
        toast_ok("The session has ended.")
        await self.refresh()

    async def _end_all(self) -> None:
        """End all sessions, this one included."""
        body = "You are signed out here and everywhere else. Tokens stay."
        if (
            await confirm(self._viewer, "End all sessions?", body, "End all", danger=True, needs_reason=False)
            is None
        ):
            return
        await admin_sessions.end_sessions(self._console.database, self._viewer.actor)
        ui.navigate.to("/sign-in")


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
