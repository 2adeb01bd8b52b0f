"""Service levels: measured exactly, credited once, and before the invoice when it is not made yet."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from admin import alerts as admin_alerts
from admin import statements as admin_statements
from admin.audit import list_audit
from billing.close.checks import CHECKS
from billing.invoicing.run import make_invoices
from billing.ledger.months import parse_month
from billing.ledger.verification import verify
from billing.pricing.contracts import add_contract
from billing.statements import sla_credits
from billing.statements.sla_credits import SlaResult, credit_last_month, credit_month
from core.errors import Conflict
from core.money import usd_to_pico
from tests.integration.billing.invoicing.support import Platform
from tests.integration.billing.support import Customer, account, make_customer, price
from tests.support.closing import close_month
from tests.support.tenancy import ADMIN

TTFT = {"metric": "ttft", "percentile": 95, "threshold": 800, "credit_percent": 10}
UP = {"metric": "availability", "threshold": "99", "credit_percent": 25}


@pytest.fixture
async def platform(pg_url: str) -> AsyncIterator[Platform]:
    platform = await Platform.begin(pg_url)
    yield platform
    await platform.database.close()


async def contract(platform: Platform, customer: Customer, rule: dict[str, Any]) -> UUID:
    async with platform.database.system() as connection:
        made = await add_contract(
            connection,
            tenant_id=customer.tenant_id,
            effective_from=None,
            effective_to=None,
            discount_bps=0,
            commit_monthly=None,
            payment_days=30,
            sla=rule,
            reason="r",
            created_by="t",
        )
    return made.id


async def answered(platform: Platform, customer: Customer, *ttft_ms: int, outcome: str = "completed") -> None:
    """Requests that cost a dollar each, with these times to the first token."""
    ids = [await platform.use(customer, input=1_000_000, outcome=outcome) for _ in ttft_ms]
    async with platform.database.engine.begin() as connection:  # as the owner: no role may change rows
        for request, ms in zip(ids, ttft_ms, strict=True):
            await connection.execute(
                text("UPDATE usage_rows SET ttft_us = :us WHERE request_id = :id"),
                {"us": ms * 1000, "id": request},
            )


async def measured(platform: Platform) -> list[SlaResult]:
    return await admin_statements.run_sla(platform.database, ADMIN, month=platform.month, dry_run=True)


async def test_the_percentile_decides_to_the_microsecond(platform: Platform) -> None:
    await price(platform.database)
    acme = await make_customer(platform.database, "100")
    await contract(platform, acme, TTFT)
    await answered(platform, acme, *[100] * 19, 5_000)
    [kept] = await measured(platform)
    assert (kept.missed, kept.amount_usd, kept.evidence["measured_us"]) == (False, "0.00", 100_000)
    await answered(platform, acme, 800)
    assert not (await measured(platform))[0].missed, "exactly the threshold is kept"
    await answered(platform, acme, 801, 802, outcome="client_cancelled")
    assert not (await measured(platform))[0].missed, "what the customer cancelled does not count"
    await answered(platform, acme, 801)
    [missed] = await measured(platform)
    assert (missed.missed, missed.evidence["requests"], missed.evidence["rank"]) == (True, 22, 21)
    assert missed.evidence["measured_us"] == 801_000
    assert missed.amount_usd == "2.40", "10 % of 24 dollars"
    assert len(missed.evidence["worst"]) == sla_credits.SAMPLE_SIZE
    assert (await account(platform.database, acme)).balance == usd_to_pico("76"), "a dry run books nothing"


async def test_a_miss_is_credited_once_to_a_prepaid_customer(platform: Platform) -> None:
    database = platform.database
    await price(database)
    acme, calm = await make_customer(database, "100"), await make_customer(database, "100", name="Calm")
    await contract(platform, acme, UP)
    await contract(platform, calm, UP)
    await answered(platform, acme, *[10] * 3)
    await answered(platform, acme, 0, outcome="engine_failed")
    await answered(platform, calm, 10)
    with pytest.raises(Conflict, match="can still reach"):
        await credit_month(database, platform.month)
    month = await platform.end_month()
    runs = await asyncio.gather(*(credit_month(database, month) for _ in range(4)), return_exceptions=True)
    credited = [
        one for run in runs if not isinstance(run, BaseException) for one in run.results if one.booked
    ]
    assert [one.amount_usd for one in credited] == ["0.75"], "25 % of 3 dollars"
    assert (await credit_month(database, month)).results == []
    assert await credit_last_month(database) == 0
    assert (await account(database, acme)).balance == usd_to_pico("97.75")
    [lot] = await platform.rows("SELECT kind, amount FROM credit_grants WHERE kind = 'sla'")
    assert lot.amount == usd_to_pico("0.75")
    kept = await platform.rows("SELECT amount, evidence FROM sla_credits ORDER BY amount")
    assert [int(row.amount) for row in kept] == [0, usd_to_pico("0.75")]
    assert (kept[1].evidence["requests"], kept[1].evidence["answered"]) == (4, 3)
    assert len(kept[1].evidence["worst"]) == 1
    notices = await admin_alerts.list_notices(database, ADMIN, tenant_id=acme.tenant_id)
    assert [notice.kind for notice in notices] == ["sla.credited"]
    async with database.read() as connection:
        assert (await verify(connection)).problems == []


async def test_it_stands_on_the_months_invoice(platform: Platform) -> None:
    database = platform.database
    await price(database)
    acme = await make_customer(database, mode="postpaid")
    await contract(platform, acme, TTFT)
    await answered(platform, acme, 2_000, 2_000)
    month = await platform.end_month()
    assert await credit_last_month(database) == 1
    await close_month(database, month, by="fin")
    invoice = await platform.invoice(acme, month)
    assert invoice.total_cents == 180
    lines = await platform.rows("SELECT kind, cents FROM invoice_lines ORDER BY position")
    assert [tuple(line) for line in lines] == [("usage", 200), ("sla", -20)]


async def test_after_the_invoice_the_next_one_takes_it(platform: Platform) -> None:
    database = platform.database
    await price(database)
    acme = await make_customer(database, mode="postpaid")
    await contract(platform, acme, TTFT)
    await answered(platform, acme, 2_000)
    month = await platform.end_month()
    await make_invoices(database, month)
    await credit_month(database, month)
    [row] = await platform.rows("SELECT effective_at FROM ledger_transfers WHERE kind = 'sla_credit'")
    assert row.effective_at > await platform.one(
        "SELECT CAST(:month AS timestamptz) + interval '1 month'", month=month
    )
    assert (await account(database, acme)).owed == usd_to_pico("-0.10")


async def test_a_contract_counts_from_its_first_day(platform: Platform) -> None:
    await price(platform.database)
    acme = await make_customer(platform.database, "100")
    await answered(platform, acme, 9_000)
    await platform.clock.set(await platform.clock.now() + timedelta(hours=1))
    await contract(platform, acme, TTFT)
    [kept] = await measured(platform)
    assert (kept.missed, kept.evidence["requests"]) == (False, 0)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.lists(st.integers(1, 2_000), min_size=1, max_size=30),
    percentile=st.sampled_from([50, 75, 90, 95, 99]),
)
async def test_the_database_finds_the_same_percentile(
    platform: Platform, values: list[int], percentile: int
) -> None:
    if not await platform.rows("SELECT 1 FROM price_versions"):
        await price(platform.database)
    acme = await make_customer(platform.database, "100", name="A")
    await contract(platform, acme, {**TTFT, "percentile": percentile})
    await answered(platform, acme, *values)
    [found] = [one for one in await measured(platform) if one.tenant_id == acme.tenant_id]
    smallest = min(v for v in values if sum(w <= v for w in values) * 100 >= percentile * len(values))
    assert found.evidence["measured_us"] == smallest * 1000
    assert found.missed == (smallest > 800)


def test_a_month_is_not_closed_before_it_is_measured() -> None:
    assert sla_credits.service_levels in CHECKS
    assert parse_month("2026-10").month == 10


async def test_a_run_that_partly_fails_says_in_the_audit_log_what_it_did(platform: Platform) -> None:
    database = platform.database
    await price(database)
    broken, well = [await make_customer(database, "100", name=name) for name in ("Broken", "Well")]
    contracts = [await contract(platform, customer, UP) for customer in (broken, well)]
    for customer in (broken, well):
        await answered(platform, customer, 10)
        await answered(platform, customer, 0, outcome="engine_failed")
    month = await platform.end_month()
    async with database.engine.begin() as owner:
        await owner.execute(text("SET LOCAL session_replication_role = replica"))
        rule = text('UPDATE contracts SET sla = \'{"metric": "luck"}\' WHERE id = :id')
        await owner.execute(rule, {"id": contracts[0]})
    with pytest.raises(Conflict, match=f"1 contracts could not be measured.*{contracts[0]}"):
        await admin_statements.run_sla(database, ADMIN, month=month, dry_run=False)
    [row] = await list_audit(database, ADMIN, action="sla.run")
    assert row.after == {"credited": 1, "failed": [str(contracts[0])]}


@pytest.mark.parametrize("what", ["measurement", "booking"])
async def test_one_contract_that_fails_does_not_stop_the_others(
    platform: Platform, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    database = platform.database
    await price(database)
    customers = [await make_customer(database, "100", name=name) for name in ("Broken", "Well", "Fine")]
    contracts = [await contract(platform, customer, UP) for customer in customers]
    for customer in customers:
        await answered(platform, customer, *[10] * 3)
        await answered(platform, customer, 0, outcome="engine_failed")
    await platform.end_month()
    async with database.engine.begin() as owner:
        if what == "measurement":
            await owner.execute(text("SET LOCAL session_replication_role = replica"))
            rule = text('UPDATE contracts SET sla = \'{"metric": "luck"}\' WHERE id = :id')
            await owner.execute(rule, {"id": contracts[0]})
        else:
            await owner.execute(
                text(
                    "CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS "
                    "$$ BEGIN RAISE EXCEPTION 'the books of this tenant are broken'; END $$"
                )
            )
            await owner.execute(
                text(
                    "CREATE TRIGGER broken BEFORE INSERT ON sla_credits FOR EACH ROW "
                    f"WHEN (NEW.tenant_id = '{customers[0].tenant_id}') EXECUTE FUNCTION broken()"
                )
            )
    with pytest.raises(ExceptionGroup, match="the service level of contract: 1 failed"):
        await credit_last_month(database)
    assert [one.message for one in caplog.records if "contract" in one.message] == [
        f"the service level of contract {contracts[0]} failed"
    ]
    balances = [int((await account(database, customer)).balance) for customer in customers]
    assert balances == [usd_to_pico(usd) for usd in ("97", "97.75", "97.75")]
