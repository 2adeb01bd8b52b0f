"""Closing a month: the checklist with a remedy for each failed check, the invoices, and the close."""

from collections.abc import Awaitable, Callable
from datetime import date, datetime

from nicegui import ui

from admin import invoices as admin_invoices
from admin import payments as admin_payments
from admin import periods as admin_periods
from billing.close.periods import Checklist, Period
from billing.ledger.check_result import CheckResult
from billing.ledger.months import month_name
from billing.payments.stripe_gateway import open_gateway
from console.components.base import Text, badge, box, card, link_button, notice
from console.components.dialogs import confirm, primary, secondary
from console.components.flash import reload_with
from console.components.lazy import lazy
from console.components.table import Column, Row, cell, data_table
from console.deps import Console
from console.format import moment, words
from console.viewer import Viewer

TITLES = {
    "month_over": "The month is over",
    "earlier_months": "Earlier months are closed",
    "open_holds": "No request is open",
    "spools_drained": "All spools are drained",
    "parked_records": "No record waits for a decision",
    "rollups_current": "Rollups are current",
    "ledger_sound": "The ledger verifies",
    "drift": "Usage equals the ledger",
    "unpriced": "Nothing is without a price",
    "invoices_made": "Invoices are made",
    "engines_explained": "Engines' counters are explained",
    "hosts_priced": "Every host has a price",
    "gpu_invoice": "The GPU invoice is entered",
    "service_levels": "Service levels are measured",
    "stripe_equal": "Stripe equals our books",
}
"""Check -> its title; a check without a title shows its name."""
_LINKS = {
    "drift": ("Look at the chain", "/reconciliation?month={month}"),
    "unpriced": ("Set prices", "/models"),
    "engines_explained": ("Look at engines", "/reconciliation?month={month}"),
    "hosts_priced": ("Host prices", "/finance?tab=provider&month={month}"),
    "gpu_invoice": ("Enter invoice", "/finance?tab=provider&month={month}"),
    "earlier_months": ("Open billing", "/periods"),
}
"""Check -> the page on which its failure can be resolved."""
_STRIPE = "stripe_equal"
_MONTHS = (
    Column("month", "Month"),
    Column("status", "State"),
    Column("invoiced", "Invoices made"),
    Column("closed", "Closed", numeric=True),
)


def month_rows(periods: list[Period], now: datetime) -> list[Row]:
    """Table rows of months, each with a link to its checklist."""
    return [
        {
            "id": period.month,
            "month": cell(period.month, href=f"/periods?month={period.month}"),
            "status": cell(period.status.capitalize(), tone="ok" if period.status == "closed" else "info"),
            "invoiced": cell(moment(period.invoiced_at, now)),
            "closed": cell(moment(period.closed_at, now), sub=period.closed_by or ""),
        }
        for period in periods
    ]


def months_panel(console: Console, periods: list[Period]) -> None:
    """Draw all months with their status."""
    with card(
        "Months", "A closed month never changes; what arrives later is dated to its arrival.", flush=True
    ):
        data_table(
            _MONTHS,
            month_rows(periods, console.clock.now()),
            label="Months",
            nothing="No month has begun.",
        )


async def close_panel(console: Console, viewer: Viewer, period: Period, month: date) -> None:
    """Draw the state of `month`, its checklist and the actions on it."""
    _Close(console, viewer, period, month).draw()


class _Close:
    """The checklist of one month with its actions."""

    def __init__(self, console: Console, viewer: Viewer, period: Period, month: date) -> None:
        self.console = console
        self.viewer = viewer
        self.period = period
        self.month = month
        self.name = month_name(month)

    def draw(self) -> None:
        """Create the card; the checks load lazily."""
        is_open = self.period.status != "closed"
        sub = "What must be true before the month is frozen." if is_open else "As it stood at the close."
        with card(f"Close of {self.name}", sub) as actions:
            with actions:
                badge(self.period.status.capitalize(), "info" if is_open else "ok")
                if is_open:
                    secondary("Check again", ui.navigate.reload, icon="refresh")
            lazy(self.viewer, "Running every check…", self._checks)
            if is_open:
                self.progress = Text("p", "", "muted")
                self.progress.props["role"] = "status"
                with box("div", "actions"):
                    self.make = secondary(
                        "Make invoices", self.viewer.act(self._make_invoices), icon="receipt_long"
                    )
                    self.close = primary("Close month", self.viewer.act(self._close), icon="lock")
                    self.close.disable()

    async def _checks(self) -> None:
        """Run the checks and list them, failed checks first."""
        found = await admin_periods.check_period(self.console.database, self.viewer.actor, month=self.month)
        self._summary(found)
        with box("ul", "checklist checks"):
            for check in sorted(found.checks, key=lambda one: one.ok):
                self._check_line(check)
        if self.period.status != "closed" and all(
            one.ok for one in found.checks if one.name not in ("invoices_made", _STRIPE)
        ):
            self.close.enable()

    def _summary(self, found: Checklist) -> None:
        red = sum(not one.ok for one in found.checks)
        if self.period.status == "closed":
            by = f"by {self.period.closed_by}" if self.period.closed_by else ""
            at = moment(self.period.closed_at, self.console.clock.now())
            notice("ok", f"{self.name} is closed", f"{by} {at.exact}".strip())
        elif red:
            verb = "check stands" if red == 1 else "checks stand"
            notice("warn", f"{red} {verb} against the close", "Each says below what to do about it.")
        else:
            notice("ok", "Every check is green", "The month can be closed.")

    def _check_line(self, check: CheckResult) -> None:
        with box("li"):
            mark = Text("span", "✓" if check.ok else "!", f"mark {'ok' if check.ok else 'bad'}")
            mark.props.update({"role": "img", "aria-label": "green" if check.ok else "red"})
            with box("div"):
                Text("h3", TITLES.get(check.name, words(check.name)))
                Text("p", check.detail)
            with box("div", "acts"):
                if not check.ok and check.name in _LINKS:
                    label, href = _LINKS[check.name]
                    link_button(label, href.format(month=self.name))
                elif not check.ok and check.name == _STRIPE:
                    secondary("Compare now", self.viewer.act(self._compare), icon="sync")

    async def _compare(self) -> None:
        """Compare the month with Stripe and store the result."""
        async with open_gateway(self.console.settings) as gateway:
            found = await admin_payments.compare(
                self.console.database, self.viewer.actor, gateway, month=self.month
            )
        reload_with(
            "Stripe equals our books." if found.ok else f"{len(found.problems)} differences to Stripe."
        )

    def _on_progress(self, done: int, total: int) -> None:
        self.progress.set_text(f"{done} of {total} tenants")

    async def _busy(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run a long action with the buttons disabled."""
        self.make.disable()
        self.close.disable()
        self.progress.set_text("Working…")
        try:
            await work()
        finally:
            self.progress.set_text("")
            self.make.enable()
            self.close.enable()

    async def _make_invoices(self) -> None:
        agreed = await confirm(
            self.viewer,
            f"Make the invoices of {self.name}?",
            "Every organisation gets its invoice, final and numbered; postpaid ones are sent through Stripe. "
            "Running it again makes only what is missing.",
            "Make invoices",
            needs_reason=False,
        )
        if agreed is None:
            return

        async def work() -> None:
            run = await admin_invoices.make_invoices(
                self.console.database, self.viewer.actor, month=self.month, progress=self._on_progress
            )
            reload_with(f"{run.made} invoices made." if run.made else "Every invoice was there already.")

        await self._busy(work)

    async def _close(self) -> None:
        reason = await confirm(
            self.viewer,
            f"Close {self.name}?",
            "Its usage, prices, ledger and invoices are frozen for good, with the checklist as it stands. "
            "Usage that arrives later is dated to its arrival, and a mistake is corrected by adjustments of the "
            "present. A closed month cannot be opened again.",
            "Close month",
            danger=True,
        )
        if reason is None:
            return

        async def work() -> None:
            await admin_periods.close_period(
                self.console.database,
                self.viewer.actor,
                month=self.month,
                reason=reason,
                progress=self._on_progress,
            )
            reload_with(f"{self.name} is closed.")

        await self._busy(work)
