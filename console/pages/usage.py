"""The usage report: what was used and what it cost, grouped at will, with a totals row and files to take away."""

from collections.abc import Sequence
from datetime import date, datetime
from urllib.parse import urlencode
from uuid import UUID

import msgspec
from fastapi import FastAPI, Request, Response
from nicegui import ui
from starlette.datastructures import QueryParams

from admin import billing as admin_billing
from admin import tenants as admin_tenants
from billing.report import ReportQuery, ReportRow
from billing.report_files import to_csv, to_json
from console.components.base import Stat, box, card, link_button, page_head
from console.components.dialogs import primary
from console.components.table import Column, Row, cell, data_table
from console.deps import Console
from console.format import Shown, count, money, per_mtok, percent, short_id
from console.panels.usage import daily_tokens_chart
from console.periods import PERIODS, Period, chosen_period
from console.plain import message_page
from console.viewer import Viewer
from core.errors import PenstockError
from core.money import pico_to_usd, ratio_per_mtok, usd_to_pico

GROUPS = {"tenant": "Tenant", "project": "Project", "key": "Key", "model": "Model", "day": "Day"}
DEFAULT_BY = {True: ("tenant", "model"), False: ("project", "model")}
"""Is platform -> grouping at first."""


class Choice(msgspec.Struct, frozen=True):
    """What the reader asked for; lives in the address, so that it can be bookmarked and sent."""

    period: str = "month"
    first: str = ""
    last: str = ""
    by: tuple[str, ...] = ()
    tenant: str = ""

    def query_string(self, **more: str) -> str:
        """The choice as an address's query."""
        values = {"period": self.period, "by": ",".join(self.by), "tenant": self.tenant}
        if self.period == "custom":
            values |= {"from": self.first, "to": self.last}
        return urlencode({name: value for name, value in {**values, **more}.items() if value})


def read_choice(params: QueryParams, *, is_platform: bool) -> Choice:
    """The choice in an address; what it does not name is the default, what it names wrongly too."""
    by = tuple(name for name in params.get("by", "").split(",") if name in GROUPS)
    if not is_platform:
        by = tuple(name for name in by if name != "tenant")
    period = params.get("period", "month")
    return Choice(
        period=period if period in PERIODS else "month",
        first=params.get("from", ""),
        last=params.get("to", ""),
        by=by or DEFAULT_BY[is_platform],
        tenant=params.get("tenant", "") if is_platform else "",
    )


def report_query(choice: Choice, viewer: Viewer, today: date) -> tuple[ReportQuery, Period]:
    """The choice as a query; a tenant role is held to its own organisation whatever the address says."""
    period = chosen_period(choice.period, choice.first, choice.last, today)
    tenant_id = viewer.scope or (UUID(choice.tenant) if choice.tenant else None)
    query = ReportQuery(
        start=period.start,
        end=period.end,
        group_by=choice.by,
        tenant_id=tenant_id,
        with_gpu=viewer.is_platform,
    )
    return query, period


async def _report(console: Console, viewer: Viewer, query: ReportQuery) -> list[ReportRow]:
    return await admin_billing.usage_report(
        console.database,
        viewer.actor,
        start=query.start,
        end=query.end,
        group_by=query.group_by,
        tenant_id=query.tenant_id,
    )


async def build(console: Console, viewer: Viewer, request: Request) -> None:
    """Draw the report of the address's choice."""
    choice = read_choice(request.query_params, is_platform=viewer.is_platform)
    today = console.clock.now().date()
    problem = ""
    try:
        query, period = report_query(choice, viewer, today)
    except ValueError as error:
        problem = str(error)
        choice = Choice(by=choice.by)
        query, period = report_query(choice, viewer, today)
    rows = await _report(console, viewer, query)
    with page_head(
        "Usage", f"{period.first:%-d %b %Y} to {period.last:%-d %b %Y}, UTC days. Amounts in US dollars."
    ):
        link_button("CSV", f"/usage/download?{choice.query_string(format='csv')}", "download", download=True)
        link_button(
            "JSON", f"/usage/download?{choice.query_string(format='json')}", "download", download=True
        )
    await _filters(console, viewer, choice, problem)
    _summary(rows, viewer.is_platform)
    await _chart(console, viewer, query, period)
    with card("Report", flush=True) as actions:
        with actions:
            search = ui.input("Search").props("outlined dense clearable").classes("search")
        table = data_table(
            _columns(choice.by, viewer.is_platform),
            _rows(rows, choice.by, viewer.is_platform),
            label="Usage report",
            nothing="Nothing was used in this period.",
            cards=False,
            page_size=50,
        )
        search.bind_value_to(table, "filter")
        if rows:
            table.add_slot("bottom-row", _totals_row(rows, len(choice.by), viewer.is_platform))


async def _filters(console: Console, viewer: Viewer, choice: Choice, problem: str) -> None:
    """The form above the report; every change loads the page of the new choice."""
    tenants = {"": "All tenants"}
    if viewer.is_platform:
        listed = await admin_tenants.list_tenants(console.database, viewer.actor)
        tenants |= {str(tenant.id): tenant.name for tenant in listed}
    groups = {name: label for name, label in GROUPS.items() if viewer.is_platform or name != "tenant"}

    def go() -> None:
        changed = Choice(
            period=period.value,
            first=(first.value or "").strip(),
            last=(last.value or "").strip(),
            by=tuple(name for name in groups if name in (by.value or [])) or choice.by,
            tenant=tenant.value if tenant else "",
        )
        ui.navigate.to(f"/usage?{changed.query_string()}")

    tenant = None
    with box("div", "filters"):
        period = ui.select(PERIODS, value=choice.period, label="Period").props("outlined dense")
        first = ui.input("From", value=choice.first).props("outlined dense stack-label type=date")
        last = ui.input("To", value=choice.last).props("outlined dense stack-label type=date")
        by = ui.select(groups, value=list(choice.by), label="Group by", multiple=True).props("outlined dense")
        if viewer.is_platform:
            tenant = ui.select(
                tenants, value=choice.tenant if choice.tenant in tenants else "", label="Tenant"
            )
            tenant.props("outlined dense")
        primary("Apply", go)
    first.error = problem or None
    for field in (first, last):
        field.bind_visibility_from(period, "value", value="custom")


def _total(rows: Sequence[ReportRow], name: str) -> int:
    return sum(getattr(row, name) for row in rows)


def _total_usd(rows: Sequence[ReportRow], name: str) -> str:
    return pico_to_usd(sum(usd_to_pico(getattr(row, name) or "0") for row in rows))


def _summary(rows: Sequence[ReportRow], is_platform: bool) -> None:
    tokens = _total(rows, "total_tokens")
    cost = _total_usd(rows, "cost_usd")
    cached, inputs = _total(rows, "cached_input_tokens"), _total(rows, "input_tokens")
    with box("div", "grid stats"):
        Stat(
            "Requests",
            count(_total(rows, "requests")),
            f"{count(_total(rows, 'requests_unbilled')).text} not billed",
        )
        Stat("Tokens", count(tokens), f"{percent(cached / inputs if inputs else None).text} of input cached")
        Stat("Cost", money(cost), "what was charged")
        Stat("Price per M tokens", per_mtok(ratio_per_mtok(usd_to_pico(cost), tokens)), "cost over tokens")
        if is_platform:
            gpu = _total_usd(rows, "gpu_cost_usd")
            Stat(
                "GPU cost per M tokens",
                per_mtok(ratio_per_mtok(usd_to_pico(gpu), tokens)),
                f"{money(gpu).text} of GPU time",
            )


async def _chart(console: Console, viewer: Viewer, query: ReportQuery, period: Period) -> None:
    days = await _report(console, viewer, msgspec.structs.replace(query, group_by=("day",)))
    if not any(row.requests for row in days):
        return
    with card("Tokens by day"):
        daily_tokens_chart(days, period, console.clock.now().date())


_NUMBERS = (
    Column("requests", "Requests", numeric=True),
    Column("input", "Input", numeric=True),
    Column("output", "Output", numeric=True),
    Column("cost", "Cost", numeric=True),
    Column("price", "Price per M", numeric=True),
)
_GPU_NUMBERS = (
    Column("gpu_cost", "GPU cost", numeric=True),
    Column("gpu_price", "GPU per M", numeric=True),
)


def _columns(by: Sequence[str], is_platform: bool) -> list[Column]:
    groups = [Column(name, GROUPS[name]) for name in by]
    return [*groups, *_NUMBERS, *(_GPU_NUMBERS if is_platform else ())]


def _rows(rows: Sequence[ReportRow], by: Sequence[str], is_platform: bool) -> list[Row]:
    """Table rows of the report's lines."""
    return [
        {
            "id": str(number),
            **{name: cell(_group_label(row, name), text=True) for name in by},
            **_numbers(row, is_platform),
        }
        for number, row in enumerate(rows)
    ]


def _totals_row(rows: Sequence[ReportRow], groups: int, is_platform: bool) -> str:
    """The last row: exact sums of the lines' exact amounts. A template, so it carries formatted numbers only."""
    tokens, cost, gpu = (
        _total(rows, "total_tokens"),
        _total_usd(rows, "cost_usd"),
        _total_usd(rows, "gpu_cost_usd"),
    )
    cells = [count(_total(rows, name)) for name in ("requests", "input_tokens", "output_tokens")]
    cells += [money(cost), per_mtok(ratio_per_mtok(usd_to_pico(cost), tokens))]
    if is_platform:
        cells += [money(gpu), per_mtok(ratio_per_mtok(usd_to_pico(gpu), tokens))]
    numbers = "".join(
        f'<q-td class="text-right"><span title="{one.exact}">{one.text}</span></q-td>' for one in cells
    )
    return f'<q-tr class="total"><q-td colspan="{groups}">Total</q-td>{numbers}</q-tr>'


def day_of(row: ReportRow) -> datetime:
    """The start of a line's period."""
    return datetime.fromisoformat(row.period_start)


def _group_label(row: ReportRow, name: str) -> Shown:
    if name == "day":
        return Shown(row.period_start[:10], row.period_start, day_of(row).timestamp())
    if name == "key":
        return Shown(f"…{row.key_last4}", str(row.key_id)) if row.key_id else Shown("–")
    if name == "tenant" and row.tenant_id is None:
        return Shown("Idle", "GPU time that no tenant used")
    value = getattr(row, name)
    return Shown(str(value), str(getattr(row, f"{name}_id", "") or "")) if value else short_id(None)


def _numbers(row: ReportRow, is_platform: bool) -> Row:
    numbers: Row = {
        "requests": cell(count(row.requests)),
        "input": cell(count(row.input_tokens), sub=_cached(row)),
        "output": cell(count(row.output_tokens)),
        "cost": cell(money(row.cost_usd)),
        "price": cell(per_mtok(row.price_per_mtok_usd)),
    }
    if is_platform:
        numbers["gpu_cost"] = cell(money(row.gpu_cost_usd))
        numbers["gpu_price"] = cell(per_mtok(row.gpu_cost_per_mtok_usd))
    return numbers


def _cached(row: ReportRow) -> str:
    if not row.cached_input_tokens:
        return ""
    return f"{percent(row.cached_input_tokens / row.input_tokens).text} cached"


def add_download(app: FastAPI, console: Console) -> None:
    """Register the report as a file. The gate has checked the session; the viewer's scope is applied here."""

    @app.get("/usage/download")
    async def download(request: Request) -> Response:
        """The report of the address's choice as CSV or JSON, in the columns and order of every other way to it."""
        viewer: Viewer = request.state.viewer
        choice = read_choice(request.query_params, is_platform=viewer.is_platform)
        try:
            query, period = report_query(choice, viewer, console.clock.now().date())
            rows = await _report(console, viewer, query)
        except (ValueError, PenstockError) as error:
            return message_page(400, "No report", str(error))
        as_json = request.query_params.get("format") == "json"
        write = to_json if as_json else to_csv
        content = write(rows, with_gpu=viewer.is_platform)
        name = f"penstock-usage-{period.first}-to-{period.last}.{'json' if as_json else 'csv'}"
        return Response(
            content,
            media_type="application/json" if as_json else "text/csv; charset=utf-8",
            headers={"content-disposition": f'attachment; filename="{name}"'},
        )
