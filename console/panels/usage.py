"""Usage summary of one organisation: the present month by day and by model, with a link to the report."""

import asyncio
from collections.abc import Awaitable, Sequence
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

from admin import usage as admin_usage
from billing.usage.query import ReportRow
from console.components.base import card, empty, link_button
from console.components.charts import Chart
from console.components.table import Column, cell, data_table
from console.deps import Console
from console.format import count, money, per_mtok
from console.periods import Period, named_period
from console.viewer import Viewer

_COLUMNS = (
    Column("model", "Model"),
    Column("requests", "Requests", numeric=True),
    Column("input", "Input tokens", numeric=True),
    Column("output", "Output tokens", numeric=True),
    Column("cost", "Cost", numeric=True),
    Column("price", "Price per M", numeric=True),
)


def daily_tokens_chart(rows: Sequence[ReportRow], period: Period, today: date) -> None:
    """Draw input and output tokens by UTC day of `period` up to `today`. `rows` are report lines by day."""
    length = (min(period.last, today) - period.first).days + 1
    days = [period.first + timedelta(days=number) for number in range(length)]
    by_day = {datetime.fromisoformat(row.period_start).date(): row for row in rows if row.requests}
    chart = Chart(
        ("Input", "Output"), kind="bar", stacked=True, daily=True, label="Input and output tokens by UTC day"
    )
    chart.set(
        [datetime(day.year, day.month, day.day, tzinfo=UTC) for day in days],
        [by_day[day].input_tokens if day in by_day else 0 for day in days],
        [by_day[day].output_tokens if day in by_day else 0 for day in days],
    )


def daily_cost_chart(rows: Sequence[ReportRow], period: Period, today: date) -> None:
    """Draw the cost by UTC day of `period` up to `today`, rounded. `rows` are report lines by day."""
    length = (min(period.last, today) - period.first).days + 1
    days = [period.first + timedelta(days=number) for number in range(length)]
    costs = {datetime.fromisoformat(row.period_start).date(): row.cost_usd for row in rows if row.requests}
    chart = Chart(("Cost",), kind="bar", daily=True, label="Cost in US dollars by UTC day")
    chart.set(
        [datetime(day.year, day.month, day.day, tzinfo=UTC) for day in days],
        [float(costs.get(day, "0")) for day in days],
    )


async def usage_panel(console: Console, viewer: Viewer, tenant_id: UUID) -> None:
    """Draw the present month of one organisation."""
    period = named_period("month", console.clock.now().date())

    def report(by: str) -> Awaitable[list[ReportRow]]:
        return admin_usage.usage_report(
            console.database,
            viewer.actor,
            start=period.start,
            end=period.end,
            group_by=(by,),
            tenant_id=tenant_id,
        )

    days, models = await asyncio.gather(report("day"), report("model"))
    with card("Tokens this month", "By UTC day") as actions:
        with actions:
            link = "/usage" if viewer.scope else f"/usage?tenant={tenant_id}"
            link_button("Open report", link, "bar_chart")
        if not days:
            empty("bar_chart", "Nothing used yet", "The first settled request of the month shows up here.")
            return
        daily_tokens_chart(days, period, console.clock.now().date())
    with card("Models this month", flush=True):
        data_table(
            _COLUMNS,
            [
                {
                    "id": row.model,
                    "model": cell(row.model),
                    "requests": cell(count(row.requests)),
                    "input": cell(count(row.input_tokens)),
                    "output": cell(count(row.output_tokens)),
                    "cost": cell(money(row.cost_usd)),
                    "price": cell(per_mtok(row.price_per_mtok_usd)),
                }
                for row in models
                if row.model
            ],
            label="Models this month",
            nothing="No request this month yet.",
        )
