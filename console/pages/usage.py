"""The usage report: usage and cost by chosen groups, compared with the ledger, and as downloads."""

import asyncio
from collections.abc import Awaitable
from datetime import date, datetime

import msgspec
from fastapi import Request
from nicegui import ui

from admin import tenants as admin_tenants
from admin import usage as admin_usage
from billing.reports.usage_report import Totals
from billing.usage.query import ReportQuery, ReportRow
from console.components.base import Stat, Text, box, card, icon, link_button, notice, page_head
from console.components.dialogs import primary
from console.components.table import data_table
from console.deps import Console
from console.format import Formatted, count, money, per_mtok, percent
from console.panels.report_choice import (
    COMPARES,
    GROUPS,
    ReportOptions,
    compared_with,
    one_time_unit,
    read_options,
    report_query,
)
from console.panels.report_table import (
    compared_columns,
    compared_rows,
    report_columns,
    report_rows,
    totals_row,
)
from console.panels.usage import daily_cost_chart, daily_tokens_chart
from console.periods import PERIODS, Period
from console.viewer import Viewer, toast_error

MAX_LINES = 2_000
"""Lines shown on the page; downloads have all lines."""


async def build(console: Console, viewer: Viewer, request: Request) -> None:
    """Draw the report that the address selects."""
    choice = read_options(request.query_params, is_platform=viewer.is_platform)
    today = console.clock.now().date()
    problem = ""
    try:
        query, period = report_query(choice, viewer, today)
        before = compared_with(choice, period, today)
    except ValueError as error:
        problem = str(error)
        choice = ReportOptions(by=choice.by)
        (query, period), before = report_query(choice, viewer, today), None
    rows, days, sums = await asyncio.gather(
        _report(console, viewer, query),
        _report(console, viewer, msgspec.structs.replace(query, group_by=("day",))),
        admin_usage.usage_totals(
            console.database, viewer.actor, start=query.start, end=query.end, tenant_id=query.tenant_id
        ),
    )
    with page_head(
        "Usage", f"{period.first:%-d %b %Y} to {period.last:%-d %b %Y}, UTC days. Amounts in US dollars."
    ):
        _downloads(choice)
    await _filters(console, viewer, choice, problem)
    _summary(sums, is_platform=viewer.is_platform)
    if any(row.requests for row in days):
        with box("div", "grid two"):
            with card("Tokens by day"):
                daily_tokens_chart(days, period, today)
            with card("Cost by day", "US dollars"):
                daily_cost_chart(days, period, today)
    if before is not None:
        await _comparison(console, viewer, query, before, period)
    _lines(rows, sums, choice, viewer)


def _report(console: Console, viewer: Viewer, query: ReportQuery) -> Awaitable[list[ReportRow]]:
    return admin_usage.usage_report(
        console.database,
        viewer.actor,
        start=query.start,
        end=query.end,
        group_by=query.group_by,
        tenant_id=query.tenant_id,
    )


def _downloads(choice: ReportOptions) -> None:
    """Links to the report as files, and to the charges in the FinOps Foundation's FOCUS format."""
    for name in ("csv", "json", "xlsx", "parquet"):
        label = {"xlsx": "Excel", "parquet": "Parquet"}.get(name, name.upper())
        link_button(label, f"/usage/download?{choice.query_string(format=name)}", "download", download=True)
    focus = choice.query_string(format="csv", dataset="focus_charges")
    link_button("FOCUS", f"/usage/download?{focus}", "download", download=True)


async def _filters(console: Console, viewer: Viewer, choice: ReportOptions, problem: str) -> None:
    """The form above the report. "Apply" loads the page with the new options."""
    tenants = {"": "All tenants"}
    if viewer.is_platform:
        listed = await admin_tenants.list_tenants(console.database, viewer.actor)
        tenants |= {str(tenant.id): tenant.name for tenant in listed}
    groups = {name: label for name, label in GROUPS.items() if viewer.is_platform or name != "tenant"}

    def go() -> None:
        chosen = tuple(name for name in groups if name in (by.value or []))
        if chosen != one_time_unit(chosen):
            toast_error("Group by one of hour, day and month, not by several.")
            return
        changed = ReportOptions(
            period=period.value,
            first=(first.value or "").strip(),
            last=(last.value or "").strip(),
            by=chosen or choice.by,
            tenant=tenant.value if tenant else "",
            compare=compare.value,
            before_first=(before_first.value or "").strip(),
            before_last=(before_last.value or "").strip(),
        )
        ui.navigate.to(f"/usage?{changed.query_string()}")

    tenant = None
    dates = "outlined dense stack-label type=date"
    with box("div", "filters"):
        period = ui.select(PERIODS, value=choice.period, label="Period").props("outlined dense")
        first = ui.input("From", value=choice.first).props(dates)
        last = ui.input("To", value=choice.last).props(dates)
        by = ui.select(groups, value=list(choice.by), label="Group by", multiple=True).props("outlined dense")
        if viewer.is_platform:
            tenant = ui.select(
                tenants, value=choice.tenant if choice.tenant in tenants else "", label="Tenant"
            )
            tenant.props("outlined dense")
        compare = ui.select(COMPARES, value=choice.compare, label="Compare with").props("outlined dense")
        before_first = ui.input("Compare from", value=choice.before_first).props(dates)
        before_last = ui.input("Compare to", value=choice.before_last).props(dates)
        primary("Apply", go)
    if problem:
        notice("warn", "This period cannot be shown", f"{problem} This month is shown instead.")
    for field in (first, last):
        field.bind_visibility_from(period, "value", value="custom")
    for field in (before_first, before_last):
        field.bind_visibility_from(compare, "value", value="custom")


def _summary(sums: Totals, *, is_platform: bool) -> None:
    """Draw the totals, for platform roles with their comparison to the ledger."""
    total = sums.totals
    cached = total.cached_input_tokens / total.input_tokens if total.input_tokens else None
    with box("div", "grid stats"):
        Stat("Requests", count(total.requests), f"{count(total.requests_unbilled).text} not billed")
        Stat("Tokens", count(total.total_tokens), f"{percent(cached).text} of input cached")
        Stat("Cost", money(total.cost_usd), _below_list(total))
        Stat("Price per M tokens", per_mtok(total.price_per_mtok_usd), "cost over tokens")
        if is_platform:
            Stat(
                "GPU cost per M tokens",
                per_mtok(total.gpu_cost_per_mtok_usd),
                f"{money(total.gpu_cost_usd).text} of GPU time",
            )
        else:
            Stat("Paid by credit", money(total.credits_applied_usd), "taken from your balance")
            Stat("Adjustments", money(total.adjustment_usd), "corrections of this period")
    if is_platform:
        _ledger_line(sums)


def _below_list(total: ReportRow) -> str:
    if not total.discount_usd.strip("0."):
        return "what was charged"
    return f"{money(total.discount_usd).text} below list prices"


def _ledger_line(sums: Totals) -> None:
    """Draw whether the report's total equals the ledger's."""
    ledger = money(sums.ledger.revenue_usd)
    with box("p", f"ledger-line {'ok' if sums.equal else 'bad'}", role="status" if sums.equal else "alert"):
        icon("check_circle" if sums.equal else "cancel")
        if sums.equal:
            Text("span", f"Cost and adjustments are the ledger's revenue: {ledger.text}.", title=ledger.exact)
        else:
            reported = money(sums.totals.cost_usd)
            Text(
                "span",
                f"Not equal to the ledger: the ledger has {ledger.exact}, the report {reported.exact} "
                f"and {money(sums.totals.adjustment_usd).exact} of adjustments. Look at Reconciliation.",
            )


async def _comparison(
    console: Console, viewer: Viewer, query: ReportQuery, before: tuple[datetime, datetime], period: Period
) -> None:
    rows = await admin_usage.compare_usage(
        console.database,
        viewer.actor,
        start=query.start,
        end=query.end,
        before=before,
        group_by=query.group_by,
        tenant_id=query.tenant_id,
    )
    last = date.fromordinal(before[1].date().toordinal() - 1)
    words = f"{_days(period.first, period.last)} against {_days(before[0].date(), last)}"
    with card("Comparison", words, flush=True):
        data_table(
            compared_columns(query.group_by, is_platform=viewer.is_platform),
            compared_rows(rows[:MAX_LINES], query.group_by, is_platform=viewer.is_platform),
            label="Comparison",
            nothing="Nothing was used in either period.",
            cards=False,
            page_size=50,
        )


def _days(first: date, last: date) -> str:
    return f"{first:%-d %b %Y}" if first == last else f"{first:%-d %b %Y} to {last:%-d %b %Y}"


def _lines(rows: list[ReportRow], sums: Totals, choice: ReportOptions, viewer: Viewer) -> None:
    """Draw the lines with the totals row."""
    if len(rows) > MAX_LINES:
        more = Formatted(f"{len(rows):,}").text
        notice("info", f"The first {MAX_LINES:,} of {more} lines", "Files and totals have all of them.")
    with card("Report", flush=True) as actions:
        with actions:
            search = ui.input("Search").props("outlined dense clearable").classes("search")
        table = data_table(
            report_columns(choice.by, is_platform=viewer.is_platform),
            report_rows(rows[:MAX_LINES], choice.by, is_platform=viewer.is_platform),
            label="Usage report",
            nothing="Nothing was used in this period.",
            cards=False,
            page_size=50,
        )
        search.bind_value_to(table, "filter")
        if rows:
            table.add_slot(
                "bottom-row", totals_row(sums.totals, len(choice.by), is_platform=viewer.is_platform)
            )
