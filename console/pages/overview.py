"""Overview: problems first, then activity and revenue."""

import asyncio
from datetime import datetime, timedelta

from fastapi import Request
from nicegui import ui

from admin import maintenance as admin_maintenance
from admin import models as admin_models
from admin import prices as admin_prices
from billing.reports.activity import Activity, activity
from console.components.base import Stat, badge, box, card, notice, page_head
from console.components.charts import Chart
from console.deps import Console
from console.format import Formatted, count, milliseconds, money
from console.pages.models import offered, unpriced
from console.pages.pools import STATE_TONES, problems
from console.panels.money_today import REFRESH_S as MONEY_REFRESH_S
from console.panels.money_today import Incident, MoneyToday
from console.time_series import Point, resample
from console.viewer import Viewer
from workers.maintenance import Maintenance
from workers.wire import ReplicaState

REFRESH_S = 5.0
MAINTENANCE = "In maintenance: requests that begin are refused"
WINDOWS = {1: "Last hour", 6: "Last 6 hours", 24: "Last 24 hours"}
STEP_MINUTES = {1: 1, 6: 5, 24: 20}
"""Hours of the window -> minutes per chart point."""


async def build(console: Console, viewer: Viewer, request: Request) -> None:
    """Draw the page and refresh it periodically."""
    page = _Overview(console, viewer)
    with page_head("Overview", "The platform at a glance. Times are UTC."):
        page.window = ui.select(WINDOWS, value=1).props("outlined dense options-dense")
        page.window.props["aria-label"] = "Period"
    page.draw()
    await page.money.refresh()
    await page.refresh()
    page.window.on_value_change(viewer.act(page.refresh))
    viewer.live(REFRESH_S, page.refresh)
    viewer.live(MONEY_REFRESH_S, page.money.refresh)


class _Overview:
    """Alerts, numbers and charts, which refreshes replace in place."""

    def __init__(self, console: Console, viewer: Viewer) -> None:
        self.console = console
        self.viewer = viewer
        self.window: ui.select
        self.money = MoneyToday(console, viewer)
        self.problems: list[Incident] | None = None
        self.states: dict[ReplicaState, int] | None = None

    def draw(self) -> None:
        """Create the empty parts of the page."""
        self.alerts = box("div", "stack")
        with box("div", "grid stats"):
            self.requests = Stat("Requests", Formatted("–"))
            self.tokens = Stat("Tokens", Formatted("–"))
            self.spend = Stat("Spend", Formatted("–"))
            self.money.draw()
            self.ttft_p50 = Stat("TTFT p50", Formatted("–"), "time to first token")
            self.ttft_p95 = Stat("TTFT p95", Formatted("–"), "1 in 20 is slower")
            self.replicas = Stat("Replicas ready", Formatted("–"))
        with box("div", "grid two"):
            with card("Requests", "As they end"):
                self.request_chart = Chart(("Requests",), label="Requests over time")
            with card("Tokens", "As requests end"):
                self.token_chart = Chart(
                    ("Input", "Output"), stacked=True, label="Input and output tokens over time"
                )
            with card("Time to first token", "Milliseconds, each step's worst minute"):
                self.ttft_chart = Chart(
                    ("p50", "p95"), label="Time to first token, median and 95th percentile"
                )
            with card("Spend", "US dollars"):
                self.spend_chart = Chart(("Spend",), kind="bar", label="Spend in US dollars over time")
        with card("Replicas by state") as actions:
            with actions:
                ui.link("Open pools", "/pools")
            self.state_row = box("div", "row-line")

    async def refresh(self) -> None:
        """Read all figures and show them."""
        now = self.console.clock.now()
        since = now - timedelta(hours=int(self.window.value))
        seen, missing, halt = await asyncio.gather(
            self._activity(since),
            self._unpriced(),
            admin_maintenance.get_maintenance(self.console.database, self.viewer.actor),
        )
        self._show_numbers(seen)
        self._show_charts(resample(seen.minutes, since, now, STEP_MINUTES[int(self.window.value)]))
        self._show_pool(missing, halt)

    async def _activity(self, since: datetime) -> Activity:
        async with self.console.database.read() as connection:
            return await activity(connection, since)

    async def _unpriced(self) -> list[str]:
        database, actor = self.console.database, self.viewer.actor
        models, prices = await asyncio.gather(
            admin_models.list_models(database, actor), admin_prices.list_prices(database, actor)
        )
        return unpriced(offered(models), prices, self.console.clock.now())

    def _show_numbers(self, seen: Activity) -> None:
        self.requests.set(count(seen.requests), f"{count(seen.failed).text} failed")
        self.tokens.set(
            count(seen.input_tokens + seen.output_tokens),
            f"{count(seen.input_tokens).text} in, {count(seen.output_tokens).text} out",
        )
        self.spend.set(money(seen.cost_usd))
        self.ttft_p50.set(milliseconds(seen.ttft_p50_ms))
        self.ttft_p95.set(milliseconds(seen.ttft_p95_ms))

    def _show_charts(self, points: list[Point]) -> None:
        times = [point.at for point in points]
        self.request_chart.set(times, [point.requests for point in points])
        self.token_chart.set(
            times,
            [point.input_tokens for point in points],
            [point.output_tokens for point in points],
        )
        self.ttft_chart.set(
            times,
            [point.ttft_p50_ms for point in points],
            [point.ttft_p95_ms for point in points],
        )
        self.spend_chart.set(times, [float(point.cost) for point in points])

    def _show_pool(self, missing: list[str], halt: Maintenance | None) -> None:
        snapshot = self.console.scheduler.snapshot()
        found = [(MAINTENANCE, halt.notice, "/audit")] if halt is not None else []
        found += [(*one, "/pools") for one in problems(snapshot, self.console.scheduler.connected)]
        found += [
            (f"{name} has no list price", "Its requests are refused until one is in force.", "/models")
            for name in missing
        ]
        found += self.money.incidents
        states = {
            state: sum(replica.state == state for replica in snapshot.replicas)
            for state in ReplicaState
            if any(replica.state == state for replica in snapshot.replicas)
        }
        ready = states.get(ReplicaState.READY, 0)
        self.replicas.set(
            Formatted(f"{ready} of {len(snapshot.replicas)}"),
            f"on {len(snapshot.hosts)} host{'' if len(snapshot.hosts) == 1 else 's'}",
        )
        warnings = self.money.warnings
        if found + warnings != self.problems:
            self.problems = found + warnings
            self.alerts.clear()
            with self.alerts:
                for headline, body, href in found:
                    notice("bad", headline, body, href)
                if not found:
                    notice("ok", "No incident", "Replicas, hosts and money are in order.")
                for headline, body, href in warnings:
                    notice("warn", headline, body, href)
        if states != self.states:
            self.states = states
            self.state_row.clear()
            with self.state_row:
                for state, number in states.items():
                    badge(f"{number} {state.value}", STATE_TONES[state])
                if not states:
                    ui.label("No replica has reported yet.").classes("muted")
