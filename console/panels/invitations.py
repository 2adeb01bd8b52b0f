"""Hosts that were invited to join: invite one (the token is shown once), revoke."""

from collections.abc import Sequence
from datetime import timedelta

from nicegui import ui

from admin import host_joining
from admin.host_joining import InvitationView
from console.components.base import card
from console.components.dialogs import confirm, form_dialog, primary, show_secret, text_input
from console.components.table import Column, Row, actions_cell, cell, data_table, set_rows
from console.deps import Console
from console.format import moment
from console.viewer import Viewer, toast_ok
from scheduler.authority import known_fingerprint

STATE_TONES = {"invited": "info", "own secret": "ok", "token expired": "warn", "revoked": "bad"}
LIFETIMES = {1: "1 hour", 24: "1 day", 168: "7 days"}
"""Hours for which a token can be used."""
OVERLAP = timedelta(hours=1)
"""How long a secret that is replaced here holds on."""
_COLUMNS = (
    Column("host", "Host"),
    Column("state", "State"),
    Column("invited", "Invited", numeric=True),
    Column("expires", "Token expires", numeric=True),
    Column("joined", "Joined", numeric=True),
    Column("rotated", "Secret replaced", numeric=True),
    Column("acts", ""),
)


class InvitationsPanel:
    """The table of invitations with its actions; `show` shows others, `refresh` reads them first."""

    def __init__(self, console: Console, viewer: Viewer) -> None:
        self._console, self._viewer = console, viewer
        sub = "A token is shown once, when it is made. The host's agent takes it as PENSTOCK_JOIN_TOKEN."
        with card("Invitations", sub, flush=True) as actions:
            if viewer.is_admin:
                with actions:
                    primary("Invite host", viewer.act(self._invite), icon="add")
            self._table = data_table(
                _COLUMNS,
                [],
                label="Invitations",
                nothing="No host was invited yet.",
                on_action=viewer.act(self._act),
            )

    async def refresh(self) -> None:
        """Read and show the present state."""
        self.show(await host_joining.list_invitations(self._console.database, self._viewer.actor))

    def show(self, invitations: Sequence[InvitationView]) -> None:
        """Show these."""
        set_rows(self._table, self._rows(invitations))

    def _rows(self, invitations: Sequence[InvitationView]) -> list[Row]:
        now = self._console.clock.now()
        acts = [("revoke", "Revoke", "bad")] if self._viewer.is_admin else []
        rotate = [("rotate", "Replace secret", ""), *acts] if self._viewer.is_admin else []
        return [
            {
                "id": one.host,
                "host": cell(one.host),
                "state": cell(one.state.capitalize(), tone=STATE_TONES[one.state]),
                "invited": cell(moment(one.invited_at, now)),
                "expires": cell(moment(one.expires_at, now)),
                "joined": cell(moment(one.joined_at, now)),
                "rotated": cell("asked for" if one.rotates else moment(one.rotated_at, now)),
                "acts": actions_cell(rotate if one.state == "own secret" else acts, f"host {one.host}"),
            }
            for one in invitations
        ]

    async def _invite(self) -> None:
        """Open the form of a new invitation; show the token once after saving."""

        async def save() -> bool:
            for field, problem in (
                (host, "Give the host id."),
                (reason, "Say why: it goes to the audit log."),
            ):
                if not field.value.strip():
                    field.error = problem
                    return False
            database = self._console.database
            invited = await host_joining.invite(
                database,
                self._viewer.actor,
                host=host.value.strip(),
                valid=timedelta(hours=int(lifetime.value)),
                reason=reason.value.strip(),
                authority=await known_fingerprint(database, self._console.settings),
            )
            await self.refresh()
            show_secret(
                "Store this token now",
                f"With it {invited.host} joins once. It is shown this once: only a hash of it is stored.",
                invited.token,
            )
            return True

        with form_dialog("Invite a host", "Create token", self._viewer, save):
            with ui.element("div").classes("fields"):
                host = text_input("Host", hint="Its host id.").props("autofocus maxlength=100")
                lifetime = ui.select(LIFETIMES, value=1, label="Token can be used for")
                lifetime.props("outlined dense")
            reason = text_input("Reason", hint="Kept in the audit log.").props("maxlength=500")

    async def _act(self, act: str, host: str) -> None:
        await (self._rotate(host) if act == "rotate" else self._revoke(host))

    async def _rotate(self, host: str) -> None:
        """Ask for another secret of a row's host."""
        reason = await confirm(
            self._viewer,
            f"Replace the secret of {host}?",
            "Its agent makes another within seconds. The present one holds for an hour beside it.",
            "Replace",
        )
        if reason is None:
            return
        await host_joining.rotate(
            self._console.database, self._viewer.actor, host=host, overlap=OVERLAP, reason=reason
        )
        toast_ok(f"{host} was asked for another secret.")
        await self.refresh()

    async def _revoke(self, host: str) -> None:
        """End the right of a row's host."""
        reason = await confirm(
            self._viewer,
            f"Revoke {host}?",
            "Within seconds its agent is turned away and its replicas get no requests. A token that was not used ends.",
            "Revoke",
            danger=True,
        )
        if reason is None:
            return
        await host_joining.revoke(self._console.database, self._viewer.actor, host=host, reason=reason)
        toast_ok(f"{host} is revoked.")
        await self.refresh()
