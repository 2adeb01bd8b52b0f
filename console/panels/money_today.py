"""The overview's financial figures: margin today, drift, and incidents."""

from collections.abc import Sequence
from datetime import timedelta

from admin import economics as admin_economics
from admin import health as admin_health
from admin.breakeven import Loss
from admin.price_losses import catalog_losses
from billing.reports.figures import percent
from billing.reports.money_health import MoneyHealth
from console.components.base import Stat
from console.deps import Console
from console.format import Formatted, count, money, sentence
from console.viewer import Viewer
from core.money import pico_to_usd, usd_to_pico

REFRESH_S = 60.0
"""Seconds between refreshes: longer than the page's, because the figures read a day of usage and host hours."""

Incident = tuple[str, str, str]
"""(headline, explanation, path of the page with details)."""


def incidents(health: MoneyHealth) -> list[Incident]:
    """An incident for each financial check that fails."""
    found: list[Incident] = []
    if health.unexplained_tokens:
        found.append(
            (
                f"{count(health.unexplained_tokens).text} tokens of engines are unexplained",
                f"On {health.unexplained_engines} engine{'' if health.unexplained_engines == 1 else 's'}: counted, "
                "and told by no usage row, failure or probe.",
                "/reconciliation",
            )
        )
    if health.drift_usd != "0.00":
        found.append(
            (
                f"Usage and ledger drift by {money(health.drift_usd).text}",
                "In the last hour, requests and what was booked for them are not the same amount.",
                "/reconciliation",
            )
        )
    if health.differing_days:
        found.append(
            (
                f"{health.differing_days} days of usage differ from their rollup",
                'Reports of them are wrong, and their month cannot be closed: its check "drift" names organisations.',
                "/periods",
            )
        )
    if health.blocked_pushes:
        found.append(
            (
                f"{health.blocked_pushes} invoices or credit notes were refused by Stripe",
                "They wait for a person: mend the cause, then send them again.",
                "/periods?tab=stripe",
            )
        )
    if health.stripe_differences:
        found.append(
            (
                f"{health.stripe_differences} differences to Stripe",
                "The newest comparison of a month that is open found them.",
                "/periods?tab=stripe",
            )
        )
    if health.undelivered_notices:
        found.append(
            (
                f"{health.undelivered_notices} notices could not be delivered",
                "Their webhook or mailbox refused them again and again.",
                "/alerts?tab=undelivered",
            )
        )
    return found


def price_warnings(losses: Sequence[Loss]) -> list[Incident]:
    """A warning for each price of the catalog that does not pay for a full host."""
    return [
        (
            f"The catalog's price of {loss.model} is below cost",
            f"{loss.price.input} USD input, {loss.price.cached_input} cached, {loss.price.output} output per million "
            f"tokens: {sentence(loss.message.removeprefix('below cost: '))} Mend it: {loss.command}",
            "/models",
        )
        for loss in losses
    ]


class MoneyToday:
    """The margin and drift figures of the overview, the financial incidents, and prices below cost."""

    def __init__(self, console: Console, viewer: Viewer) -> None:
        self.console = console
        self.viewer = viewer
        self.incidents: list[Incident] = []
        self.warnings: list[Incident] = []

    def draw(self) -> None:
        """Create the empty figures."""
        self.margin = Stat("Margin today", Formatted("–"), "since midnight UTC")
        self.drift = Stat("Drift", Formatted("–"), "usage less ledger, last hour")

    async def refresh(self) -> None:
        """Read both figures and the incidents, and show the figures."""
        now = self.console.clock.now()
        start = now.replace(hour=0, minute=0, second=0, microsecond=0)
        end = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
        rows = await admin_economics.economics_report(
            self.console.database, self.viewer.actor, start=start, end=end, by=("day",)
        )
        revenue = sum(usd_to_pico(row.revenue_usd) for row in rows)
        margin = revenue - sum(usd_to_pico(row.gpu_cost_usd) for row in rows)
        self.margin.set(money(pico_to_usd(margin)), revenue_share(margin, revenue))
        health = await admin_health.money_health(self.console.database, self.viewer.actor)
        self.drift.set(money(health.drift_usd))
        self.incidents = incidents(health)
        self.warnings = price_warnings(await catalog_losses(self.console.database, self.viewer.actor))


def revenue_share(margin: int, revenue: int) -> str:
    """The margin beside its revenue, both in picodollars. A loss above the revenue has no share that says anything."""
    share = percent(margin, revenue)
    shown = money(pico_to_usd(revenue)).text
    if share is None:
        return "no revenue yet"
    return f"revenue {shown}" if margin < -revenue else f"{share}% of {shown}"
