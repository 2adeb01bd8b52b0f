"""Credit by lot: granted and remaining amount, expiry; and the form that grants credit."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from uuid import UUID

from nicegui import ui

from admin import credits as admin_credits
from admin.money_rules import get_rules
from billing.ledger.credits import MAX_PRIORITY, PRIORITIES, Lot
from console.components.base import box, card
from console.components.dialogs import form_dialog, text_input
from console.components.table import Column, Row, cell, data_table, set_rows
from console.deps import Console
from console.format import Formatted, moment, money
from console.panels.amounts import parse_instant, parse_usd
from console.viewer import Viewer, toast_ok

KINDS = {
    "purchased": "Purchased",
    "promotional": "Promotional",
    "sla": "Service level",
    "adjustment": "Adjustment",
}
GRANTED = {"promotional": "Promotional: a gift", "purchased": "Purchased: paid outside of Stripe"}
_COLUMNS = (
    Column("kind", "Credit"),
    Column("remaining", "Left", numeric=True),
    Column("amount", "Of", numeric=True),
    Column("expires", "Expires", numeric=True),
    Column("reason", "Reason", sortable=False),
    Column("at", "Since", numeric=True),
)


class LotsPanel:
    """The lots of an organisation in the order in which usage consumes them."""

    def __init__(self, console: Console, viewer: Viewer, tenant_id: UUID) -> None:
        self.console = console
        self.viewer = viewer
        self.tenant_id = tenant_id
        self.table: ui.table
        self.spent: ui.checkbox

    async def draw(self) -> None:
        """Create the table."""
        with card("Credits", "In the order in which they are used.", flush=True) as actions:
            with actions:
                self.spent = ui.checkbox("Show used ones")
            self.table = data_table(
                _COLUMNS, await self._rows(), label="Credits", nothing="There is no credit left."
            )
        self.spent.on_value_change(self.viewer.act(self.reload))

    async def reload(self) -> None:
        """Read and show the present state."""
        set_rows(self.table, await self._rows())

    async def _rows(self) -> list[Row]:
        lots = await admin_credits.list_lots(
            self.console.database,
            self.viewer.actor,
            tenant_id=self.tenant_id,
            spent=bool(self.spent.value),
        )
        now = self.console.clock.now()
        return [self._row(lot, now) for lot in lots]

    def _row(self, lot: Lot, now: datetime) -> Row:
        who = lot.created_by if self.viewer.is_platform else ""
        never = Formatted("Never", "this credit does not expire", float("inf"))
        return {
            "id": str(lot.id),
            "kind": cell(KINDS.get(lot.kind, lot.kind), sub=f"priority {lot.priority}"),
            "remaining": cell(money(lot.remaining_usd), sub=_losses(lot)),
            "amount": cell(money(lot.amount_usd)),
            "expires": cell(never if lot.expires_at is None else moment(lot.expires_at, now)),
            "reason": cell(lot.reason, wrap=True, sub=who),
            "at": cell(moment(lot.created_at, now)),
        }


def _losses(lot: Lot) -> str:
    """The expired and the returned part of the lot, as text."""
    parts = []
    for amount, word in ((lot.expired_usd, "expired"), (lot.returned_usd, "returned")):
        if amount.strip("0."):
            parts.append(f"{money(amount).text} {word}")
    return ", ".join(parts)


async def open_grant_form(
    console: Console, viewer: Viewer, tenant_id: UUID, done: Callable[[], Awaitable[None]]
) -> None:
    """Open the form that grants prepaid credit: amount, kind, expiry, priority and reason.

    Above the limit it needs an approval.
    """
    rules = await get_rules(console.database)

    async def save() -> bool:
        usd, expires, order = "", None, None
        amount.error = until.error = rank.error = None
        try:
            usd = parse_usd(amount.value or "")
        except ValueError as error:
            amount.error = str(error)
        try:
            expires = parse_instant(until.value or "")
        except ValueError as error:
            until.error = str(error)
        try:
            order = _parse_priority(rank.value or "")
        except ValueError as error:
            rank.error = str(error)
        reason.error = None if (reason.value or "").strip() else "Say why: it goes to the audit log."
        if amount.error or until.error or rank.error or reason.error:
            return False
        await admin_credits.grant_credit(
            console.database,
            viewer.actor,
            tenant_id=tenant_id,
            amount_usd=usd,
            reason=reason.value.strip(),
            kind=kind.value,
            expires_at=expires,
            priority=order,
        )
        toast_ok(f"{money(usd).text} of credit granted.")
        await done()
        return True

    with form_dialog(
        "Grant credit",
        "Grant credit",
        viewer,
        save,
        sub=f"Up to {money(rules.approval_limit_usd).text} in 30 days it can be spent at once; more waits for a "
        "second person.",
    ):
        amount = text_input("Amount in US dollars").props("autofocus inputmode=decimal prefix=$")
        with box("div", "fields"):
            kind = ui.select(GRANTED, value="promotional", label="Kind").props("outlined dense")
            until = text_input("Expires (UTC)", hint="Date or date and time; empty for never.")
            usual = (
                f"Lower is used first; empty for {PRIORITIES['promotional']} or {PRIORITIES['purchased']}."
            )
            rank = text_input("Priority", hint=usual).props("inputmode=numeric")
        reason = text_input("Reason", hint="Kept in the audit log and the ledger.").props("maxlength=500")


def _parse_priority(text: str) -> int | None:
    """A lot's priority from user input; None when empty. Raises ValueError with a user message."""
    plain = text.strip()
    if not plain:
        return None
    if not plain.isascii() or not plain.isdigit() or int(plain[:8]) > MAX_PRIORITY:
        raise ValueError(f"A whole number from 0 to {MAX_PRIORITY}.")
    return int(plain)
