"""The report's columns from the books, its totals beside the ledger, and two periods side by side."""

import csv
import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from admin import usage as admin_usage
from billing.reports.compare import flatten, parse_compare, previous_period
from billing.reports.report_format import compared_csv
from billing.reports.usage_report import totals, usage_report
from billing.usage.query import DIMENSIONS, ReportQuery, ReportRow
from core.db import Database
from core.errors import InvalidRequest
from core.money import usd_to_pico
from tests.integration.billing.exports.books import Busy, busy, ledger
from tests.support.tenancy import ADMIN, member

GROUPINGS: list[tuple[str, ...]] = [
    ("tenant",),
    ("hour",),
    ("month", "tenant"),
    ("model", "price_version", "simulated"),
    ("tier", "region"),
    ("gpu",),
    ("tenant", "project", "key", "model", "tier", "region", "gpu", "price_version", "simulated", "day"),
]


async def told(database: Database, month: Busy, group_by: tuple[str, ...], **more: Any) -> list[ReportRow]:
    async with database.read() as connection:
        return await usage_report(connection, ReportQuery(month.start, month.end, group_by, **more))


@pytest.mark.parametrize("group_by", GROUPINGS, ids="-".join)
async def test_any_grouping_adds_up_to_the_ledger(database: Database, group_by: tuple[str, ...]) -> None:
    month = await busy(database)
    query = ReportQuery(month.start, month.end, group_by)
    async with database.snapshot() as connection:
        rows = await usage_report(connection, query)
        found = await totals(connection, query, rows)
    assert found.equal
    assert usd_to_pico(found.ledger.revenue_usd) == await ledger(database, revenue=1)
    used = usd_to_pico(found.totals.cost_usd)
    assert used + usd_to_pico(found.totals.adjustment_usd) == await ledger(database, revenue=1)
    assert usd_to_pico(found.totals.gpu_cost_usd or "0") == month.gpu_cost
    assert len({_key(row, group_by) for row in rows}) == len(rows)
    one = ReportQuery(month.start, month.end, group_by, month.customers[1].tenant_id, with_gpu=False)
    async with database.snapshot(month.customers[1].tenant_id) as connection:
        mine = await totals(connection, one, await usage_report(connection, one))
    assert mine.equal
    assert 0 < usd_to_pico(mine.totals.credits_applied_usd) < usd_to_pico(mine.totals.cost_usd)
    assert mine.totals.gpu_cost_usd is None


def _key(row: ReportRow, group_by: tuple[str, ...]) -> tuple[Any, ...]:
    ids = {"tenant": row.tenant_id, "project": row.project_id, "key": row.key_id}
    values = [
        ids[name]
        if name in ids
        else row.period_start
        if name in ("hour", "day", "month")
        else getattr(row, name)
        for name in group_by
    ]
    return (row.requests == 0, row.tenant_id, row.adjustment_usd != "0.00", *values)


async def test_periods_and_invoices_stand_beside_the_lines(database: Database) -> None:
    month = await busy(database, requests=30)
    mine = month.customers[2]
    first = month.end.date().replace(day=1)
    async with database.engine.begin() as connection:
        await connection.exec_driver_sql(
            "INSERT INTO invoices (id, tenant_id, month, kind, status, exact, total_cents, number) "
            f"VALUES (gen_random_uuid(), '{mine.tenant_id}', '{first}', 'postpaid', 'open', 0, 0, 'PEN-7')"
        )
    rows = await told(database, month, ("tenant", "hour"))
    now = [row for row in rows if datetime.fromisoformat(row.period_start).date() >= first]
    assert {row.invoice_id for row in now if row.tenant_id == str(mine.tenant_id)} == {"PEN-7"}
    assert {row.invoice_id for row in rows if row.tenant_id != str(mine.tenant_id)} == {None}
    assert {row.period_status for row in rows} == {"open"}
    assert {row.credits_applied_usd for row in rows if row.tenant_id == str(mine.tenant_id)} == {"0.00"}


async def test_two_periods_side_by_side(database: Database) -> None:
    month = await busy(database)
    middle = month.start + timedelta(days=2)
    asked = {"start": middle, "end": month.end, "group_by": ("tenant", "model")}
    before = (month.start, middle)
    rows = await admin_usage.compare_usage(database, ADMIN, before=before, **asked)
    both = sum(
        usd_to_pico(str(row.figures["cost_usd"].now)) + usd_to_pico(str(row.figures["cost_usd"].before))
        for row in rows
    )
    whole = await told(database, month, ("tenant",))
    assert both == sum(usd_to_pico(row.cost_usd) for row in whole)
    for row in rows:
        cost = row.figures["cost_usd"]
        assert usd_to_pico(str(cost.now)) - usd_to_pico(str(cost.before)) == usd_to_pico(str(cost.difference))
    lines = list(csv.DictReader(io.StringIO(compared_csv(flatten(rows, with_gpu=True)).lstrip("\ufeff"))))
    assert {"cost_usd", "cost_usd_before", "cost_usd_difference", "cost_usd_percent"} <= set(lines[0])
    assert any(line["cost_usd_difference"].startswith("-") or line["cost_usd_difference"] for line in lines)
    viewer = member(month.customers[0].tenant_id, "tenant_viewer")
    mine = flatten(await admin_usage.compare_usage(database, viewer, before=before, **asked), with_gpu=False)
    assert {row["tenant"] for row in mine} == {"=Rich, Inc."}
    assert not [name for name in mine[0] if name.startswith(("gpu_", "margin_"))]


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc, arg-type]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (utc(2026, 11, 1), utc(2026, 12, 1), (utc(2026, 10, 1), utc(2026, 11, 1))),
        (utc(2026, 1, 1), utc(2026, 4, 1), (utc(2025, 10, 1), utc(2026, 1, 1))),
        (utc(2026, 11, 8), utc(2026, 11, 15), (utc(2026, 11, 1), utc(2026, 11, 8))),
        (utc(2026, 3, 1), utc(2026, 3, 1, 6), (utc(2026, 2, 28, 18), utc(2026, 3, 1))),
    ],
)
def test_the_period_before(start: datetime, end: datetime, expected: tuple[datetime, datetime]) -> None:
    assert previous_period(start, end) == expected
    assert parse_compare("previous", start, end, None) == expected
    with pytest.raises(InvalidRequest):
        parse_compare("yesterday", start, end, None)


async def test_two_units_of_time_are_refused(database: Database) -> None:
    month = await busy(database, requests=1)
    for wrong in (("hour", "day"), ("outcome",), DIMENSIONS):
        with pytest.raises(InvalidRequest):
            await told(database, month, wrong)
