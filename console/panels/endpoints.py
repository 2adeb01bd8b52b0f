"""Endpoints of notices (webhooks and mailboxes) of an organisation or the platform, and the sent notices."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from nicegui import ui

from admin import alerts as admin_alerts
from billing.notifications.endpoints import EndpointView, NoticeView
from console.components.base import Text, box, card, description_list
from console.components.dialogs import confirm, form_dialog, secondary, show_secret, text_input
from console.components.table import Cell, Column, Row, actions_cell, cell, data_table
from console.deps import Console
from console.format import moment, words
from console.viewer import Viewer, toast_ok

CHANNELS = {"email": "E-mail", "webhook": "Webhook"}
STATE_TONES = {"delivered": "ok", "pending": "info", "outbox": "warn", "failed": "bad"}
STATE_WORDS = {"outbox": "Kept: no mail server"}
_ENDPOINTS = (
    Column("target", "Where"),
    Column("channel", "How"),
    Column("kinds", "About"),
    Column("since", "Since", numeric=True),
    Column("acts", ""),
)
_NOTICES = (
    Column("at", "When"),
    Column("subject", "Notice"),
    Column("state", "Delivery"),
    Column("where", "To", sortable=False),
    Column("acts", ""),
)


class EndpointsPanel:
    """The endpoints of one organisation, or of the platform (None), with their actions."""

    def __init__(self, console: Console, viewer: Viewer, tenant_id: UUID | None) -> None:
        self.console = console
        self.viewer = viewer
        self.tenant_id = tenant_id
        self.may_set = viewer.may_bill or viewer.role == "tenant_owner"
        self.found: list[EndpointView] = []
        self.place: ui.element

    async def draw(self) -> None:
        """Create the card."""
        self.place = box("div", "stack")
        await self.reload()

    async def reload(self) -> None:
        """Read and show the present state."""
        self.found = await admin_alerts.list_endpoints(
            self.console.database, self.viewer.actor, tenant_id=self.tenant_id
        )
        self.place.clear()
        with (
            self.place,
            card("Who is told", "Webhooks are signed; the secret is shown once.", flush=True) as actions,
        ):
            if self.may_set:
                with actions:
                    secondary("Add", self.viewer.act(self.add), icon="add")
                    if self.found:
                        secondary("Send a test", self.viewer.act(self.test), icon="send")
            data_table(
                _ENDPOINTS,
                [self._row(one) for one in self.found],
                label="Who is told",
                nothing="No recipients yet. Add a mailbox or a webhook.",
                on_action=self.viewer.act(self.remove),
            )

    def _row(self, one: EndpointView) -> Row:
        return {
            "id": str(one.id),
            "target": cell(one.target, wrap=True, sub=one.created_by),
            "channel": cell(CHANNELS.get(one.channel, one.channel)),
            "kinds": cell(
                "Everything" if one.kinds is None else ", ".join(words(kind) for kind in one.kinds)
            ),
            "since": cell(moment(one.created_at, self.console.clock.now())),
            "acts": actions_cell([("remove", "Remove", "bad")] if self.may_set else [], one.target),
        }

    async def add(self) -> None:
        """Open the form of a mailbox or a webhook. A webhook's secret is shown once."""

        async def save() -> bool:
            target.error = None if (target.value or "").strip() else "An address, please."
            if target.error:
                return False
            settings = self.console.settings
            hosts = frozenset(
                host.strip() for host in settings.webhook_allow_hosts.split(",") if host.strip()
            )
            made = await admin_alerts.add_endpoint(
                self.console.database,
                self.viewer.actor,
                tenant_id=self.tenant_id,
                channel="webhook" if channel.value == "webhook" else "email",
                target=target.value.strip(),
                pepper=self.console.key_pepper,
                allow_hosts=hosts,
            )
            if made.secret is not None:
                show_secret(
                    "Signing secret",
                    "Every message is signed with it (HMAC-SHA256). Store it now: it is not shown again.",
                    made.secret,
                )
            else:
                toast_ok(f"{made.endpoint.target} is told from now on.")
            await self.reload()
            return True

        with form_dialog("Who is told", "Add", self.viewer, save, sub="Of budgets, payments and papers."):
            channel = ui.select(CHANNELS, value="email", label="How").props("outlined dense")
            hint = "name@example.com, or https://example.com/hook"
            target = text_input("Address", hint=hint).props("autofocus maxlength=500")

    async def test(self) -> None:
        """Send a test notice to all endpoints."""
        await admin_alerts.send_test(self.console.database, self.viewer.actor, tenant_id=self.tenant_id)
        toast_ok("A test is on its way; its delivery shows below within a minute.")

    async def remove(self, _: str, row: str) -> None:
        """Remove an endpoint."""
        one = next((each for each in self.found if str(each.id) == row), None)
        if one is None:
            return
        answer = await confirm(
            self.viewer,
            f"Tell {one.target} nothing any more?",
            "What was not delivered yet is given up.",
            "Remove",
            danger=True,
            needs_reason=False,
        )
        if answer is None:
            return
        await admin_alerts.remove_endpoint(
            self.console.database, self.viewer.actor, tenant_id=self.tenant_id, endpoint_id=one.id
        )
        await self.reload()


def delivery_state(notice: NoticeView) -> tuple[str, str]:
    """The worst state among a notice's deliveries as (text, tone)."""
    states = {str(one["state"]) for one in notice.deliveries}
    for state in ("failed", "pending", "outbox", "delivered"):
        if state in states:
            return STATE_WORDS.get(state, state.capitalize()), STATE_TONES[state]
    return "No recipients", "idle"


def notices_table(
    console: Console,
    viewer: Viewer,
    found: Sequence[NoticeView],
    *,
    title: str,
    sub: str,
    nothing: str,
    names: dict[UUID, str] | None = None,
) -> None:
    """A table of notices, the newest first; "Read" opens one. `names` (by id) adds the organisation."""
    by_id = {str(one.id): one for one in found}

    async def read(_: str, row: str) -> None:
        if row in by_id:
            show_notice(by_id[row], console.clock.now())

    columns = list(_NOTICES)
    if names is not None:
        columns.insert(1, Column("tenant", "Of"))
    with card(title, sub, flush=True):
        data_table(
            columns,
            [_notice_row(one, console.clock.now(), names) for one in found],
            label=title,
            nothing=nothing,
            on_action=viewer.act(read),
        )


def _notice_row(one: NoticeView, now: datetime, names: dict[UUID, str] | None) -> Row:
    state, tone = delivery_state(one)
    row: Row = {
        "id": str(one.id),
        "at": cell(moment(one.created_at, now)),
        "subject": cell(one.subject, wrap=True, sub=words(one.kind)),
        "state": cell(state, tone=tone),
        "where": _targets(one.deliveries),
        "acts": actions_cell([("read", "Read", "")], one.subject),
    }
    if names is not None:
        row["tenant"] = cell("Platform" if one.tenant_id is None else names.get(one.tenant_id, "–"))
    return row


def _targets(deliveries: Sequence[dict[str, Any]]) -> Cell:
    if not deliveries:
        return cell("–")
    more = f"and {len(deliveries) - 1} more" if len(deliveries) > 1 else ""
    return cell(str(deliveries[0]["target"]), text=True, sub=more)


def show_notice(one: NoticeView, now: datetime) -> None:
    """Show one notice in a dialog, with its deliveries."""
    with ui.dialog() as dialog, ui.card().classes("dialog wide").props("flat"):
        Text("h2", one.subject)
        Text("p", one.body, "pre")
        description_list([("Kind", words(one.kind)), ("Made", moment(one.created_at, now))])
        for each in one.deliveries:
            state = str(each["state"])
            line = f"{CHANNELS.get(str(each['channel']), each['channel'])} to {each['target']}: "
            line += STATE_WORDS.get(state, state)
            if each.get("last_error"):
                line += f" after {each['attempts']} attempts: {each['last_error']}"
            Text("p", line, "muted")
        with box("div", "actions"):
            secondary("Close", dialog.close)
    dialog.on("hide", dialog.delete)
    dialog.open()
