"""Usage of one organisation in short: this month by day and by model, with the way to the whole report."""

import asyncio
from collections.abc import Awaitable
from datetime import datetime
from uuid import UUID

from admin import billing as admin_billing
from billing.report import ReportRow
from console.components.base import card, empty, link_button
from console.components.charts import Chart
from console.components.table import Column, cell, data_table
from console.deps import Console
from console.format import count, money, per_mtok
from console.periods import named_period
from console.viewer import Viewer

_COLUMNS = (
    Column("model", "Model"),
    Column("requests", "Requests", numeric=True),
    Column("input", "Input tokens", numeric=True),
    Column("output", "Output tokens", numeric=True),
    Column("cost", "Cost", numeric=True),
    Column("price", "Price per M", numeric=True),
)


async def usage_panel(console: Console, viewer: Viewer, tenant_id: UUID) -> None:
    """Draw the month of one organisation."""
    period = named_period("month", console.clock.now().date())

    def report(by: str) -> Awaitable[list[ReportRow]]:
        return admin_billing.usage_report(
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
        chart = Chart(
            ("Input", "Output"), kind="bar", stacked=True, label="Input and output tokens by day this month"
        )
        chart.set(
            [datetime.fromisoformat(row.period_start) for row in days],
            [row.input_tokens for row in days],
            [row.output_tokens for row in days],
        )
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
