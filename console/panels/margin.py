"""Margin: revenue and GPU cost, the bridge between two periods, cost per million tokens, unused host time."""

from collections.abc import Sequence
from datetime import date, datetime, timedelta

import msgspec
from nicegui import ui
from starlette.datastructures import QueryParams

from admin import economics as admin_economics
from admin import prices as admin_prices
from billing.ledger.months import bounds, month_name, month_of
from billing.reports.margin import DIRECT, EconomicsRow
from billing.reports.margin_compare import BridgeView, PeriodView
from console.components.base import Stat, Text, box, card, formatted, notice
from console.components.lazy import lazy
from console.components.table import Column, Row, cell, data_table
from console.components.waterfall import Step, waterfall
from console.deps import Console
from console.format import DASH, Formatted, count, money, per_mtok
from console.viewer import Viewer
from core.money import pico_to_usd, usd_to_pico

PERIODS = {"month": "The month", "7d": "Last 7 days", "30d": "Last 30 days"}
EFFECTS = {
    "price": "Price",
    "volume": "Volume",
    "mix": "Mix",
    "cache": "Cache",
    "utilisation": "Utilisation",
    "gpu_price": "GPU price",
}
LINES = {
    "warm_idle": "Idle",
    "loading": "Loading",
    "asleep": "Asleep",
    "draining": "Draining",
    "no_agent": "No agent",
    "contract_unused": "Contract, not used",
    "serving": "Serving without usage",
}
"""State of a host without usage -> its label."""
_HOUR = timedelta(hours=1)
_COST_COLUMNS = (
    Column("model", "Model"),
    Column("tokens", "Tokens", numeric=True),
    Column("revenue", "Revenue", numeric=True),
    Column("cost", "GPU cost", numeric=True),
    Column("margin", "Margin", numeric=True),
    Column("input", "Input per M", numeric=True),
    Column("output", "Output per M", numeric=True),
    Column("blended", "Blended per M", numeric=True),
)
_PAIR_COLUMNS = (Column("tenant", "Tenant"), *_COST_COLUMNS[:5])
_UNUSED_COLUMNS = (
    Column("line", "What the host did"),
    Column("model", "Model"),
    Column("seconds", "GPU time", numeric=True),
    Column("cost", "Cost", numeric=True),
)


class ComparedPeriods(msgspec.Struct, frozen=True):
    """Two half-open periods of whole hours."""

    before: tuple[datetime, datetime]
    after: tuple[datetime, datetime]


def compared_periods(name: str, month: date, now: datetime) -> ComparedPeriods:
    """The period `name` and the one before it. A running month is compared with as many hours of the month before."""
    hour = now.replace(minute=0, second=0, microsecond=0) + _HOUR
    if name in ("7d", "30d"):
        length = timedelta(days=int(name[:-1]))
        return ComparedPeriods((hour - 2 * length, hour - length), (hour - length, hour))
    start, end = bounds(month)
    previous, _ = bounds(month_of(start - _HOUR))
    if now >= end:
        return ComparedPeriods((previous, start), (start, end))
    return ComparedPeriods((previous, min(start, previous + (hour - start))), (start, hour))


def read_period(params: QueryParams) -> str:
    """The `span` parameter of an address when PERIODS has it, else "month"."""
    name = params.get("span", "")
    return name if name in PERIODS else "month"


async def margin_panel(console: Console, viewer: Viewer, month: date, params: QueryParams) -> None:
    """Draw the selection at once; the figures load lazily."""
    span, loaded = read_period(params), params.get("loaded") == "1"
    spans = compared_periods(span, month, console.clock.now())

    def go() -> None:
        more = "&loaded=1" if toggle.value else ""
        ui.navigate.to(f"/finance?tab=margin&month={month_name(month)}&span={choice.value}{more}")

    with box("div", "filters"):
        choice = ui.select(PERIODS, value=span, label="Period", on_change=go).props("outlined dense")
        toggle = ui.switch("Fully loaded", value=loaded, on_change=go)
        toggle.props["title"] = "Idle, loading and asleep are spread over what was used"
        Text("span", f"{_words(spans.after)}, against {_words(spans.before)}", "muted")
    await unpriced_alarm(console, viewer)

    async def draw() -> None:
        await _figures(console, viewer, spans, loaded)

    lazy(viewer, "Adding up usage and host hours…", draw)


def _words(span: tuple[datetime, datetime]) -> str:
    return f"{span[0]:%-d %b %H:%M} to {span[1]:%-d %b %Y %H:%M}"


async def unpriced_alarm(console: Console, viewer: Viewer) -> None:
    """A notice for every requested or offered model without a price; normally none."""
    for one in await admin_prices.unpriced(console.database, viewer.actor):
        refused = f"{count(one.requests).text} requests were refused." if one.requests else "It is offered."
        notice("bad", f"{one.model} ({one.tier}) has no price", refused, "/models", "Set a price")


async def _figures(console: Console, viewer: Viewer, spans: ComparedPeriods, loaded: bool) -> None:
    database, actor = console.database, viewer.actor
    start, end = spans.after
    bridge = await admin_economics.margin_bridge(database, actor, before=spans.before, after=spans.after)
    models = await admin_economics.economics_report(
        database, actor, start=start, end=end, by=("model",), fully_loaded=loaded
    )
    pairs = await admin_economics.economics_report(
        database, actor, start=start, end=end, by=("tenant", "model"), fully_loaded=loaded
    )
    _numbers(bridge.before, bridge.after)
    _bridge(bridge)
    words = "Idle, loading and asleep are spread over it." if loaded else "Only what usage itself took."
    with card("Cost per million tokens", words, flush=True):
        data_table(
            _COST_COLUMNS,
            [_cost_row(row) for row in models if row.line == DIRECT],
            label="Cost per million tokens",
            nothing="Nothing was used in this period.",
        )
    with card("Unused GPU time", "Host time beside usage; fully loaded, usage carries it.", flush=True):
        data_table(
            _UNUSED_COLUMNS,
            unused_rows(models),
            label="Unused GPU time",
            nothing="Usage carries all host time." if loaded else "No host time lay idle.",
        )
    with card("Margin by tenant and model", flush=True):
        data_table(
            _PAIR_COLUMNS,
            [_pair_row(row) for row in pairs if row.line == DIRECT],
            label="Margin by tenant and model",
            nothing="Nothing was used in this period.",
            sort_by="margin",
        )


def _share(text: str | None) -> Formatted:
    return (
        Formatted(DASH, "", float("-inf"))
        if text is None
        else Formatted(f"{text.replace('-', '−')}%", f"{text} percent", float(text))
    )


def _numbers(before: PeriodView, after: PeriodView) -> None:
    with box("div", "grid stats"):
        Stat("Revenue", money(after.revenue_usd), f"{money(before.revenue_usd).text} before")
        Stat("GPU cost", money(after.gpu_cost_usd), f"{money(before.gpu_cost_usd).text} before")
        Stat("Margin", money(after.margin_usd), f"{money(before.margin_usd).text} before")
        Stat("Margin share", _share(after.margin_pct), f"{_share(before.margin_pct).text} before")
        Stat("Tokens", count(after.tokens), f"{count(before.tokens).text} before")


def bridge_steps(view: BridgeView) -> list[Step]:
    """The columns of the waterfall: the margin before, each effect, the margin after."""
    effects = [Step(EFFECTS.get(name, name), money(usd)) for name, usd in view.effects.items()]
    before = Step("Before", money(view.before.margin_usd), is_total=True)
    return [before, *effects, Step("After", money(view.after.margin_usd), is_total=True)]


def _bridge(view: BridgeView) -> None:
    """Draw the waterfall, and below it the exact amounts with their sum."""
    effects = sum(usd_to_pico(usd) for usd in view.effects.values())
    adds_up = usd_to_pico(view.before.margin_usd) + effects == usd_to_pico(view.after.margin_usd)
    with card("Margin bridge", "Why the margin is not what it was."):
        steps = bridge_steps(view)
        waterfall(steps, label="Margin before, each effect, margin after, in US dollars")
        with box("dl", "facts bridge"):
            for step in steps:
                Text("dt", step.name)
                formatted(step.amount, "dd", "num")
        if adds_up:
            words = f"✓ The effects add up to the difference of {money(view.difference_usd).text}"
            Text("p", words, "ratio-plus", f"{pico_to_usd(effects)} USD")
        else:
            notice(
                "bad", "The effects do not add up", f"{pico_to_usd(effects)} against {view.difference_usd}"
            )


def _cost_row(row: EconomicsRow) -> Row:
    return {
        **_money_cells(row),
        "input": cell(per_mtok(row.gpu_cost_per_mtok_input_usd)),
        "output": cell(per_mtok(row.gpu_cost_per_mtok_output_usd)),
        "blended": cell(per_mtok(row.gpu_cost_per_mtok_usd)),
        "revenue": cell(money(row.revenue_usd), sub=f"{per_mtok(row.revenue_per_mtok_usd).text} per M"),
    }


def _pair_row(row: EconomicsRow) -> Row:
    return {
        **_money_cells(row),
        "tenant": cell(row.tenant or DASH, href=f"/tenants/{row.tenant_id}", text=True),
    }


def _money_cells(row: EconomicsRow) -> Row:
    return {
        "id": f"{row.tenant_id} {row.model}",
        "model": cell(row.model or DASH, text=True),
        "tokens": cell(count(row.input_tokens + row.output_tokens)),
        "revenue": cell(money(row.revenue_usd)),
        "cost": cell(money(row.gpu_cost_usd)),
        "margin": cell(money(row.margin_usd), sub=_share(row.margin_pct).text),
    }


def unused_rows(rows: Sequence[EconomicsRow]) -> list[Row]:
    """Table rows of host time without usage by state and model."""
    return [
        {
            "id": f"{row.line} {row.model}",
            "line": cell(LINES.get(row.line, row.line)),
            "model": cell(row.model or "no model"),
            "seconds": cell(gpu_time(row.gpu_seconds)),
            "cost": cell(money(row.gpu_cost_usd)),
        }
        for row in rows
        if row.line != DIRECT
    ]


def gpu_time(seconds: str) -> Formatted:
    """GPU time from a decimal string of seconds, in hours; the tooltip has the exact seconds."""
    value = float(seconds)
    return Formatted(f"{value / 3600:,.2f} h", f"{seconds} GPU seconds", value)
