"""The close of a month: the checks that must pass, and that a closed month does not change."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from admin.actor import Actor
from admin.host_contracts import add_contract, end_contract
from billing.close import checks
from billing.close.periods import (
    checklist,
    get_period,
    list_periods,
    make_due_invoices,
    write_off_parked,
)
from billing.economics.host_prices import set_host_price
from billing.invoicing.run import make_invoices
from billing.ledger.months import bounds, month_of, next_month
from billing.ledger.transfers import book
from billing.reports.usage_report import usage_report
from billing.usage.query import ReportQuery
from core.errors import Conflict, InvalidRequest
from core.ids import uuid7
from core.money import PICO_PER_USD
from tests.integration.billing.invoicing.support import Platform
from tests.integration.billing.support import MODEL, Customer, make_customer, price
from tests.support.closing import close_month

OWNER = Actor(kind="cli", id="test", label="test", role="platform_admin")


async def red(platform: Platform, month: Any) -> dict[str, str]:
    """The failed checks before invoices are made."""
    found = await checklist(platform.database, month)
    return {one.name: one.detail for one in found.checks if not one.ok and one.name != "invoices_made"}


async def used(platform: Platform) -> Customer:
    """A postpaid customer that used $1 this month."""
    await price(platform.database)
    acme = await make_customer(platform.database, mode="postpaid")
    await platform.use(acme, input=1_000_000)
    return acme


async def snapshot(platform: Platform, month: Any) -> tuple[Any, ...]:
    """Everything that shows a closed month: report, invoices, journal."""
    start, end = bounds(month)
    async with platform.database.read() as connection:
        report = await usage_report(connection, ReportQuery(start, end, ("tenant", "model"), with_gpu=False))
    return (
        [(row.tenant_id, row.model, row.input_tokens, row.cost_usd) for row in report],
        await platform.rows("SELECT * FROM invoices WHERE month = :month ORDER BY id", month=month),
        await platform.rows(
            "SELECT l.* FROM invoice_lines l JOIN invoices i ON i.id = l.invoice_id WHERE month = :month "
            "ORDER BY l.id",
            month=month,
        ),
        await platform.rows(
            "SELECT * FROM ledger_transfers WHERE effective_at >= :start AND effective_at < :end ORDER BY id",
            start=start,
            end=end,
        ),
    )


async def test_a_green_month_closes_and_says_how_it_stood(platform: Platform) -> None:
    acme = await used(platform)
    month = await platform.end_month()
    assert await red(platform, month) == {}
    closed = await close_month(platform.database, month, by="fin")
    assert closed.ok
    assert (await platform.invoice(acme, month)).total_cents == 100
    async with platform.database.read() as connection:
        period = await get_period(connection, month)
        months = await list_periods(connection)
    assert (period.status, period.closed_by) == ("closed", "fin")
    assert [one.month for one in months] == [f"{next_month(month):%Y-%m}", f"{month:%Y-%m}"]
    assert await checklist(platform.database, month) == closed
    assert await close_month(platform.database, month, by="somebody else") == closed


@pytest.mark.promise(17)
async def test_nothing_of_a_closed_month_moves_when_usage_comes_late(platform: Platform) -> None:
    acme = await used(platform)
    month = await platform.end_month()
    await close_month(platform.database, month, by="fin")
    before = await snapshot(platform, month)
    late = await platform.use(acme, input=3_000_000, ended_at=bounds(month)[1] - timedelta(minutes=1))
    now = await platform.clock.now()
    (row,) = await platform.rows("SELECT ended_at FROM usage WHERE request_id = :id", id=late)
    assert month_of(row.ended_at) == month_of(now)
    second = await platform.end_month()
    await close_month(platform.database, second, by="fin")
    assert [(line.kind, line.cents) for line in await platform.lines(acme, second)] == [("late_usage", 300)]
    after = await snapshot(platform, month)
    assert after == before
    await platform.is_sound()


@pytest.mark.promise(17)
async def test_a_closed_month_takes_no_booking_and_no_change(platform: Platform) -> None:
    acme = await used(platform)
    month = await platform.end_month()
    await close_month(platform.database, month, by="fin")
    with pytest.raises(Conflict, match="closed"):
        async with platform.database.system() as connection:
            await book(connection, "fee", acme.tenant_id, "fees", "cash", 1, uuid7(), bounds(month)[0])
    for act in (
        "UPDATE billing_periods SET closed_by = 'x'",
        "DELETE FROM billing_periods",
        "INSERT INTO billing_periods (month) VALUES ('2020-01-01')",
        "UPDATE invoices SET total_cents = 1",
        "UPDATE invoice_lines SET cents = 1",
        "DELETE FROM invoice_lines",
    ):
        with pytest.raises(DBAPIError):
            async with platform.database.system() as connection:
                await connection.execute(text(act))


async def test_the_present_month_is_not_over(platform: Platform) -> None:
    await used(platform)
    assert "month_over" in await red(platform, platform.month)
    with pytest.raises(Conflict, match="month_over") as refused:
        await close_month(platform.database, platform.month, by="fin")
    assert [one["name"] for one in refused.value.details["checks"]] == [
        "month_over",
        "rollups_current",
        "drift",
    ]
    assert "not run while month_over, rollups_current failed" in str(refused.value)
    assert await platform.rows("SELECT 1 FROM billing_periods") == []


async def test_months_are_closed_in_their_order(platform: Platform) -> None:
    acme = await used(platform)
    first = await platform.end_month()
    await platform.use(acme, input=1)
    second = await platform.end_month()
    assert "close it first" in (await red(platform, second))["earlier_months"]
    await close_month(platform.database, first, by="fin")
    await close_month(platform.database, second, by="fin")


async def test_an_open_hold_and_a_dead_process_keep_the_month_open(platform: Platform) -> None:
    acme = await used(platform)
    request = uuid7()
    async with platform.database.system() as connection:
        await connection.execute(
            text(
                "SELECT * FROM penstock_hold('api-1', ARRAY[CAST(:r AS uuid)], ARRAY[CAST(:t AS uuid)], "
                "ARRAY[CAST(:p AS uuid)], ARRAY[CAST(:k AS uuid)], ARRAY[:model], ARRAY['standard'], "
                "CAST('{10}' AS bigint[]), CAST('{10}' AS bigint[]), CAST('{10}' AS bigint[]))"
            ),
            {"r": request, "t": acme.tenant_id, "p": acme.project_id, "k": acme.key_id, "model": MODEL},
        )
    month = await platform.end_month()
    assert str(request) in (await red(platform, month))["open_holds"]
    async with platform.database.system() as connection:
        await connection.execute(
            text("SELECT penstock_release(ARRAY[CAST(:r AS uuid)], 'expired')"), {"r": request}
        )
    assert "api-1 (1)" in (await red(platform, month))["spools_drained"]
    # The spool is adopted: the request is billed in the present month.
    await platform.use(acme, input=5, request_id=request)
    assert await red(platform, month) == {}


async def test_a_lost_spool_keeps_the_month_open_for_the_late_window_only(platform: Platform) -> None:
    acme = await used(platform)
    request = uuid7()
    start, _ = bounds(platform.month)
    month = await platform.end_month()
    async with platform.database.system() as connection:
        await connection.execute(
            text(
                "INSERT INTO holds (request_id, tenant_id, project_id, key_id, model, incarnation, price_version, "
                "output_tokens, amount, state, admitted_at, renewed_at, closed_at) VALUES (:r, :t, :t, :t, 'm', "
                "'api-9', 1, 1, 1, 'expired', :start, :start, clock_timestamp())"
            ),
            {"r": request, "t": acme.tenant_id, "start": start},
        )
    assert "api-9" in (await red(platform, month))["spools_drained"]
    await platform.clock.set(await platform.clock.now() + timedelta(hours=49))
    assert await red(platform, month) == {}


async def test_a_parked_record_keeps_the_month_open_until_somebody_decides(platform: Platform) -> None:
    await used(platform)
    request = uuid7()
    async with platform.database.system() as connection:
        await connection.execute(text("SELECT penstock_park(:id, 'no such price', '\\x00')"), {"id": request})
    month = await platform.end_month()
    assert "no such price" in (await red(platform, month))["parked_records"]
    async with platform.database.system() as connection:
        await write_off_parked(connection, request, reason="a test's record", by="fin")
    assert await red(platform, month) == {}
    with pytest.raises(Conflict, match="decided already"):
        async with platform.database.system() as connection:
            await write_off_parked(connection, request, reason="again", by="fin")


async def test_drift_between_rows_and_ledger_is_red_and_named(platform: Platform) -> None:
    acme = await used(platform)
    month = await platform.end_month()
    async with platform.database.engine.begin() as connection:
        await connection.execute(text("UPDATE usage_rows SET cost = cost + 7"))
    found = await red(platform, month)
    assert str(acme.tenant_id) in found["drift"]
    assert "1.000000000007" in found["drift"]
    assert "ledger_sound" in found
    with pytest.raises(Conflict, match="drift"):
        await close_month(platform.database, month, by="fin")
    assert await platform.rows("SELECT 1 FROM invoices") == []


async def test_a_model_without_a_price_is_red(platform: Platform) -> None:
    await used(platform)
    async with platform.database.engine.begin() as connection:
        await connection.execute(
            text("UPDATE price_versions SET effective = tstzrange(lower(effective), clock_timestamp())")
        )
        await connection.execute(
            text("INSERT INTO models (name, status) VALUES (:name, 'active') ON CONFLICT DO NOTHING"),
            {"name": MODEL},
        )
    month = await platform.end_month()
    assert MODEL in (await red(platform, month))["unpriced"]


async def test_two_people_close_at_once_and_bookings_go_on(platform: Platform) -> None:
    acme = await used(platform)
    month = await platform.end_month()
    closing = [close_month(platform.database, month, by=name) for name in ("ann", "bob")]
    using = [platform.use(acme, input=10) for _ in range(10)]
    first, second, *_ = await asyncio.gather(*closing, *using)
    assert first == second
    assert len(await platform.rows("SELECT 1 FROM billing_periods WHERE status = 'closed'")) == 1
    assert await platform.one("SELECT sum(cost) FROM usage") == PICO_PER_USD + 10 * 10 * 10**6
    await platform.is_sound()


async def test_a_run_after_the_close_makes_nothing(platform: Platform) -> None:
    await used(platform)
    month = await platform.end_month()
    await close_month(platform.database, month, by="fin")
    assert (await make_invoices(platform.database, month)).made == 0


def test_everything_the_design_asks_of_a_close_is_asked() -> None:
    names = [check.__name__ for check in (*checks.CHECKS, *checks.FINAL_CHECKS)]
    assert names[0] == "month_over"
    assert {
        "earlier_months",
        "open_holds",
        "spools_drained",
        "parked_records",
        "rollups_current",
        "ledger_sound",
        "drift",
        "unpriced",
        "engines_explained",
        "hosts_priced",
        "gpu_invoice_entered",
        "invoices_made",
        "stripe_equal",
    } <= set(names)
    assert set(checks.INVOICE_CHECKS) <= set(checks.CHECKS)


async def test_without_a_comparison_with_stripe_no_month_is_closed(
    platform: Platform,
) -> None:
    await used(platform)
    await platform.rows("UPDATE stripe_state SET used_since = clock_timestamp() RETURNING 1")
    month = await platform.end_month()
    with pytest.raises(Conflict, match="not compared yet"):
        await close_month(platform.database, month, by="fin")
    # The invoices exist, so that they can be sent and compared.
    assert len(await platform.rows("SELECT 1 FROM invoices WHERE status = 'open'")) == 1


async def test_invoices_due_are_made_by_the_job_behind_their_checks(platform: Platform) -> None:
    acme = await used(platform)
    assert await make_due_invoices(platform.database) == 0
    async with platform.database.system() as connection:
        await connection.execute(text("SELECT penstock_park(:id, 'odd', '\\x00')"), {"id": uuid7()})
    await platform.end_month()
    with pytest.raises(Conflict, match="parked_records"):
        await make_due_invoices(platform.database)
    assert await platform.rows("SELECT 1 FROM invoices") == []
    await platform.rows(
        "INSERT INTO parked_decisions (request_id, reason, decided_by) "
        "SELECT request_id, 'r', 'fin' FROM settle_errors RETURNING request_id"
    )
    assert await make_due_invoices(platform.database) == 1
    assert await make_due_invoices(platform.database) == 0
    assert (await platform.invoice(acme, platform.month)).total_cents == 100


async def test_a_kind_of_host_without_a_price_keeps_the_month_open(platform: Platform) -> None:
    await used(platform)
    hour = (await platform.clock.now()).replace(minute=0, second=0, microsecond=0)
    for statement in (
        "INSERT INTO hosts (host_id, host_kind, region, gpus) VALUES ('h', 'new-box', 'test', 0) RETURNING 1",
        "INSERT INTO host_seconds VALUES ('h', 'b', :hour, 'serving', 3600), "
        "('h', 'b', CAST(:hour AS timestamptz) - interval '1 hour', 'serving', 60) RETURNING 1",
    ):
        await platform.rows(statement, **({"hour": hour} if ":hour" in statement else {}))
    month = await platform.end_month()
    found = (await red(platform, month))["hosts_priced"]
    assert "new-box: 2 hours" in found
    with pytest.raises(Conflict, match="hosts_priced"):
        await close_month(platform.database, month, by="fin")
    # A price from the second hour on leaves the first without one.
    for start, left in ((hour, "new-box: 1 hours"), (hour - timedelta(hours=1), None)):
        async with platform.database.system() as connection:
            await set_host_price(
                connection, host_kind="new-box", usd_per_hour="0", source="ours", effective_from=start
            )
        assert (await red(platform, month)).get("hosts_priced", "").count(left or "\0") == (left is not None)
    assert (await close_month(platform.database, month, by="fin")).ok
    late = {"kind": "new-box", "count": 1, "usd_per_hour": "1", "source": "17", "reason": "signed"}
    with pytest.raises(Conflict, match="starts_at would change what a closed month cost"):
        await add_contract(platform.database, OWNER, **late, starts_at=hour)
    contract = await add_contract(platform.database, OWNER, **late, starts_at=bounds(month)[1])
    with pytest.raises(InvalidRequest, match="cannot end at"):
        await end_contract(
            platform.database, OWNER, contract_id=contract.contract_id, ends_at=hour, reason="no"
        )
