"""Balance, holds, budget and credit of one organisation."""

from decimal import Decimal
from uuid import UUID

from nicegui import ui

from admin import accounts as admin_accounts
from billing.ledger.accounts import AccountView
from console.components.base import Stat, box, card, meter, notice
from console.components.dialogs import form_dialog, primary, secondary, text_input
from console.deps import Console
from console.format import Formatted, money
from console.panels.amounts import parse_usd
from console.panels.lots import LotsPanel, open_grant_form
from console.viewer import Viewer, toast_ok


async def money_panel(console: Console, viewer: Viewer, tenant_id: UUID) -> None:
    """Draw the account's figures with their actions."""
    panel = _MoneyPanel(console, viewer, tenant_id)
    await panel.draw()


class _MoneyPanel:
    """Four figures, a budget bar, and buttons for roles that may change money."""

    def __init__(self, console: Console, viewer: Viewer, tenant_id: UUID) -> None:
        self.console = console
        self.viewer = viewer
        self.tenant_id = tenant_id
        self.account: AccountView
        self.lots = LotsPanel(console, viewer, tenant_id)

    async def draw(self) -> None:
        """Create the figures and refresh them periodically."""
        self.account = await self.read()
        with box("div", "actions"):
            if self.viewer.may_bill and self.account.mode == "prepaid":
                primary("Grant credit", self.viewer.act(self.grant), icon="add_card")
            if self.viewer.may_bill or self.viewer.role == "tenant_owner":
                secondary("Set budget", self.viewer.act(self.set_budget), icon="savings")
        self.alert = box("div", "stack")
        with box("div", "grid stats"):
            self.available = Stat("Available", Formatted(""))
            self.balance = Stat("Balance" if self.account.mode == "prepaid" else "Owed", Formatted(""))
            self.held = Stat("Held by open requests", Formatted(""))
            self.spent = Stat("Spent this month", Formatted(""))
        self.budget = box("div")
        if self.account.mode == "prepaid":
            await self.lots.draw()
        self.show()
        self.viewer.live(5.0, self.refresh)

    async def read(self) -> AccountView:
        """Read the account."""
        return await admin_accounts.get_account(
            self.console.database, self.viewer.actor, tenant_id=self.tenant_id
        )

    async def refresh(self) -> None:
        """Read and show the present state."""
        account = await self.read()
        if account != self.account:
            self.account = account
            self.show()
            if account.mode == "prepaid":
                await self.lots.reload()

    def show(self) -> None:
        """Show the account's values."""
        account = self.account
        no_bound = Formatted("No bound", "postpaid without a credit limit or budget")
        self.available.set(
            no_bound if account.available_usd is None else money(account.available_usd),
            "less holds, within budget",
        )
        prepaid = account.mode == "prepaid"
        unpaid = "" if prepaid else f", and {money(account.invoiced_usd).text} invoiced and unpaid"
        self.balance.set(
            money(account.balance_usd if prepaid else account.owed_usd), account.mode.capitalize() + unpaid
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
        """Grant prepaid credit."""

        async def done() -> None:
            await self.refresh()
            await self.lots.reload()

        await open_grant_form(self.console, self.viewer, self.tenant_id, done)

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
            await admin_accounts.set_budget(
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
