"""Balance, holds, budget and credit of one organisation."""

from datetime import datetime
from decimal import Decimal
from uuid import UUID

from nicegui import ui

from admin import billing as admin_billing
from billing.accounts import AccountView, GrantView
from console.components.base import Stat, box, card, meter, notice
from console.components.dialogs import form_dialog, primary, secondary, text_input
from console.components.table import Column, Row, cell, data_table, set_rows
from console.deps import Console
from console.format import Shown, moment, money
from console.viewer import Viewer, toast_ok
from core.money import usd_to_pico

_GRANT_COLUMNS = (
    Column("amount", "Amount"),
    Column("reason", "Reason", sortable=False),
    Column("by", "Granted by"),
    Column("at", "When", numeric=True),
)


def parse_usd(text: str, *, zero: bool = False) -> str:
    """An amount as typed, such as "$1,250.50", as an exact decimal string. Raises ValueError with a sentence."""
    plain = text.strip().removeprefix("$").replace(",", "").strip()
    try:
        pico = usd_to_pico(plain)
    except ValueError:
        raise ValueError("An amount of dollars, such as 25 or 12.50.") from None
    if pico < 0 or (pico == 0 and not zero):
        raise ValueError("An amount above zero.")
    return plain


async def money_panel(console: Console, viewer: Viewer, tenant_id: UUID) -> None:
    """Draw the account's numbers with the acts on them."""
    panel = _MoneyPanel(console, viewer, tenant_id)
    await panel.draw()


class _MoneyPanel:
    """Four numbers, a budget bar, and buttons for who may change money."""

    def __init__(self, console: Console, viewer: Viewer, tenant_id: UUID) -> None:
        self.console = console
        self.viewer = viewer
        self.tenant_id = tenant_id
        self.account: AccountView
        self.grants: ui.table

    async def draw(self) -> None:
        """Put the numbers on the page and keep them live."""
        self.account = await self.read()
        with box("div", "actions"):
            if self.viewer.may_bill and self.account.mode == "prepaid":
                primary("Grant credit", self.viewer.act(self.grant), icon="add_card")
            if self.viewer.may_bill or self.viewer.role == "tenant_owner":
                secondary("Set budget", self.viewer.act(self.set_budget), icon="savings")
        self.alert = box("div", "stack")
        with box("div", "grid stats"):
            self.available = Stat("Available", Shown(""))
            self.balance = Stat("Balance" if self.account.mode == "prepaid" else "Owed", Shown(""))
            self.held = Stat("Held by open requests", Shown(""))
            self.spent = Stat("Spent this month", Shown(""))
        self.budget = box("div")
        if self.account.mode == "prepaid":
            with card("Credits", "What was granted, newest first.", flush=True):
                self.grants = data_table(
                    _GRANT_COLUMNS,
                    await self.grant_rows(),
                    label="Credits",
                    nothing="No credit was granted yet.",
                )
        self.show()
        self.viewer.live(5.0, self.refresh)

    async def read(self) -> AccountView:
        """The account as it stands."""
        return await admin_billing.get_account(
            self.console.database, self.viewer.actor, tenant_id=self.tenant_id
        )

    async def refresh(self) -> None:
        """Read again and show what changed."""
        account = await self.read()
        if account != self.account:
            self.account = account
            self.show()

    async def grant_rows(self) -> list[Row]:
        """Rows of the credits table."""
        now = self.console.clock.now()
        grants: list[GrantView] = await admin_billing.list_grants(
            self.console.database, self.viewer.actor, tenant_id=self.tenant_id
        )
        return [
            {
                "id": str(grant.id),
                "amount": cell(money(grant.amount_usd)),
                "reason": cell(grant.reason, wrap=True),
                "by": cell(grant.created_by),
                "at": cell(moment(datetime.fromisoformat(grant.created_at), now)),
            }
            for grant in grants
        ]

    def show(self) -> None:
        """Put the account's values into the cards."""
        account = self.account
        no_bound = Shown("No bound", "postpaid without a credit limit or budget")
        self.available.set(
            no_bound if account.available_usd is None else money(account.available_usd),
            "less holds, within budget",
        )
        prepaid = account.mode == "prepaid"
        self.balance.set(
            money(account.balance_usd if prepaid else account.owed_usd), account.mode.capitalize()
        )
        self.held.set(money(account.held_usd), f"{account.open_requests} open")
        self.spent.set(money(account.spent_this_month_usd), "since the 1st, UTC")
        self.alert.clear()
        if account.available_usd is not None and Decimal(account.available_usd) <= 0:
            with self.alert:
                notice(
                    "warn",
                    "Nothing left to spend",
                    "Requests are refused until there is credit within the budget.",
                )
        self.budget.clear()
        if account.budget_usd is not None:
            with self.budget, card("Monthly budget"):
                self._budget_bar(account.spent_this_month_usd, account.budget_usd)

    def _budget_bar(self, spent: str, budget: str) -> None:
        share = float(Decimal(spent) / Decimal(budget)) if Decimal(budget) else 1.0
        label = f"{money(spent).text} of {money(budget).text} used"
        with box("div", "row-line"):
            ui.label(label).classes("num")
        meter(share, label)

    async def grant(self) -> None:
        """Ask for amount and reason, then grant prepaid credit."""

        async def save() -> bool:
            try:
                usd = parse_usd(amount.value or "")
                amount.error = None
            except ValueError as error:
                amount.error = str(error)
            reason.error = None if (reason.value or "").strip() else "Say why: it goes to the audit log."
            if amount.error or reason.error:
                return False
            await admin_billing.grant_credit(
                self.console.database,
                self.viewer.actor,
                tenant_id=self.tenant_id,
                amount_usd=usd,
                reason=reason.value.strip(),
            )
            toast_ok(f"{money(usd).text} of credit granted.")
            await self.refresh()
            set_rows(self.grants, await self.grant_rows())
            return True

        with form_dialog(
            "Grant credit", "Grant credit", self.viewer, save, sub="The credit can be spent at once."
        ):
            amount = text_input("Amount in US dollars").props("autofocus inputmode=decimal prefix=$")
            reason = text_input("Reason", hint="Kept in the audit log and the ledger.").props("maxlength=500")

    async def set_budget(self) -> None:
        """Set or clear the monthly budget."""

        async def save() -> bool:
            text = (amount.value or "").strip()
            try:
                usd = parse_usd(text, zero=True) if text else None
                amount.error = None
            except ValueError as error:
                amount.error = str(error)
                return False
            await admin_billing.set_budget(
                self.console.database, self.viewer.actor, tenant_id=self.tenant_id, usd=usd
            )
            toast_ok(
                f"The monthly budget is {money(usd).text}." if usd else "There is no monthly budget any more."
            )
            await self.refresh()
            return True

        with form_dialog(
            "Monthly budget",
            "Set budget",
            self.viewer,
            save,
            sub="Requests are refused when the month's spend reaches it.",
        ):
            amount = text_input(
                "US dollars per month", self.account.budget_usd or "", hint="Empty for no budget."
            )
            amount.props("autofocus inputmode=decimal prefix=$")
