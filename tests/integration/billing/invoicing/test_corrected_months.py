"""Corrections beside late usage and committed spend: each month costs what it should."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from billing.invoicing import corrections
from billing.invoicing.corrections import (
    dry_run,
)
from billing.invoicing.lines import UsageGroup
from billing.invoicing.rerate import parse_spec
from billing.invoicing.run import make_invoices
from billing.ledger.months import bounds, next_month
from billing.pricing.contracts import end_contract
from core.money import PICO_PER_USD
from tests.integration.billing.invoicing.correcting import DOUBLE, HALF, decide, request, reverse
from tests.integration.billing.invoicing.support import Platform
from tests.integration.billing.support import MODEL, Customer, make_customer, price
from tests.support.closing import close_month


async def test_late_usage_is_corrected_after_the_rows_that_say_so_are_gone(
    platform: Platform, pg_url: str
) -> None:
    await price(platform.database)
    acme = await make_customer(platform.database, mode="postpaid")
    await platform.use(acme, input=1_000_000)
    early = await platform.end_month()
    await close_month(platform.database, early, by="fin")
    late = await platform.clock.now() - timedelta(days=3)
    await platform.use(acme, input=1_000_000, ended_at=late)
    month = await platform.end_month()
    await close_month(platform.database, month, by="fin")
    assert [one.kind for one in await platform.lines(acme, month)] == ["late_usage"]
    # As after the month's partition is dropped: the sums stay, and the invoice's lines tell late usage apart.
    owner = await asyncpg.connect(pg_url)
    await owner.execute("SET session_replication_role = replica; DELETE FROM usage_late")
    await owner.close()
    done = await decide(platform, await request(platform, month, HALF))
    assert (done.status, done.delta_usd) == ("approved", "-0.50")
    (line,) = await platform.rows("SELECT kind, used_in, delta FROM correction_lines")
    assert (line.kind, line.used_in, int(line.delta)) == ("late_usage", early, -PICO_PER_USD // 2)
    assert await platform.one("SELECT sum(cents) FROM credit_notes") == 50
    await platform.is_sound()


async def committed(platform: Platform, usd: int) -> Customer:
    """A postpaid customer that has used a dollar of its monthly commitment."""
    await price(platform.database)
    acme = await make_customer(platform.database, mode="postpaid")
    begin = datetime(platform.month.year, platform.month.month, 1, tzinfo=UTC)
    await platform.commit_to(acme, usd * PICO_PER_USD, since=begin)
    await platform.use(acme, input=1_000_000)
    return acme


@pytest.mark.parametrize(
    ("usd", "spec", "lines", "notes"),
    [
        (3, DOUBLE, [("usage", "1.00"), ("commit", "-1.00")], 100),
        (3, HALF, [("usage", "-0.50"), ("commit", "0.50")], 50),
        (1, HALF, [("usage", "-0.50"), ("commit", "0.50")], 50),
    ],
)
async def test_a_commitment_lacks_less_when_usage_costs_more(
    platform: Platform, usd: int, spec: dict[str, Any], lines: list[tuple[str, str]], notes: int
) -> None:
    acme = await committed(platform, usd)
    month = await platform.end_month()
    await close_month(platform.database, month, by="fin")
    assert (await platform.invoice(acme, month)).total_cents == 100 * usd
    async with platform.database.read() as connection:
        told = await dry_run(connection, month, parse_spec(spec))
    assert [(line.kind, line.delta_usd) for line in told.lines] == lines
    done = await decide(platform, await request(platform, month, spec))
    assert done.delta_usd == "0.00"
    # The month still costs the commitment: the credit on its invoice is charged on the next.
    assert await platform.one("SELECT sum(cents) FROM credit_notes") == notes
    assert await platform.balance(acme, "revenue") == -usd * PICO_PER_USD
    undone = await decide(platform, await reverse(platform, done))
    assert undone.delta_usd == "0.00"
    assert await platform.balance(acme, "revenue") == -usd * PICO_PER_USD
    await platform.is_sound()


async def test_usage_beyond_the_commitment_costs_what_the_right_price_makes_it(platform: Platform) -> None:
    acme = await committed(platform, 2)
    month = await platform.end_month()
    await close_month(platform.database, month, by="fin")
    triple = {"rates": [{"model": MODEL, "input": "3", "output": "1"}]}
    done = await decide(platform, await request(platform, month, triple))
    assert done.delta_usd == "1.00"
    assert await platform.balance(acme, "revenue") == -3 * PICO_PER_USD
    await decide(platform, await request(platform, month, HALF))
    assert await platform.balance(acme, "revenue") == -2 * PICO_PER_USD
    await platform.is_sound()


async def test_a_correction_before_the_invoice_counts_towards_the_commitment(platform: Platform) -> None:
    acme = await committed(platform, 3)
    await platform.clock.set(await platform.clock.now() + timedelta(hours=2))
    await decide(platform, await request(platform, platform.month, DOUBLE))
    month = await platform.end_month()
    await make_invoices(platform.database, month)
    found = [(one.kind, one.cents) for one in await platform.lines(acme, month)]
    assert found == [("usage", 100), ("commit", 100), ("adjustment", 100)]
    assert await platform.balance(acme, "revenue") == -3 * PICO_PER_USD
    await platform.is_sound()


@pytest.mark.parametrize(
    ("spec", "late", "costs"), [(DOUBLE, 1, 5), (HALF, 1, 5), (DOUBLE, 4, 8), (HALF, 4, 5)]
)
async def test_a_correction_counts_late_usage_in_the_month_it_belongs_to(
    platform: Platform, spec: dict[str, Any], late: int, costs: int
) -> None:
    """Of 5 dollars committed 2 are used in time and `late` afterwards, at the price before the correction.

    What the month costs in all, on both invoices, is the greater of its usage and the commitment.
    """
    await price(platform.database)
    acme = await make_customer(platform.database, mode="postpaid")
    contract = await platform.commit_to(
        acme, 5 * PICO_PER_USD, since=datetime(platform.month.year, platform.month.month, 1, tzinfo=UTC)
    )
    await platform.use(acme, input=2_000_000)
    month = await platform.end_month()
    await close_month(platform.database, month, by="fin")
    async with platform.database.system() as connection:
        await end_contract(connection, contract, at=None, by="ann")
    (ended,) = await platform.rows("SELECT upper(effective) AS at FROM contracts")
    begin, end = bounds(next_month(month))
    moment = timedelta(microseconds=1)
    part = 5 * PICO_PER_USD * ((ended.at - begin) // moment) // ((end - begin) // moment)
    await platform.use(acme, input=late * 1_000_000, ended_at=begin - timedelta(hours=1))
    second = await platform.end_month()
    await close_month(platform.database, second, by="fin")
    before = max(2 + late, 5) * PICO_PER_USD
    assert await platform.balance(acme, "revenue") == -before - part
    done = await decide(platform, await request(platform, month, spec))
    assert await platform.balance(acme, "revenue") == -costs * PICO_PER_USD - part
    # A correction of the later month leaves its own shortfall alone: late usage is none of its usage.
    async with platform.database.read() as connection:
        told = await dry_run(connection, second, parse_spec(spec))
    assert {(line.kind, line.used_in) for line in told.lines} <= {("late_usage", month), ("commit", month)}
    await decide(platform, await reverse(platform, done))
    assert await platform.balance(acme, "revenue") == -before - part
    await platform.is_sound()


async def test_only_the_usage_that_a_correction_concerns_is_read(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    await price(platform.database)
    await price(platform.database, model="lake-70b")
    begin = datetime(platform.month.year, platform.month.month, 1, tzinfo=UTC)
    customers = [await make_customer(platform.database, mode="postpaid") for _ in range(3)]
    acme, other, _ = customers
    await platform.commit_to(acme, 30 * PICO_PER_USD, since=begin)
    for customer in customers:
        await platform.use(customer, input=1_000_000, model="lake-70b")
    for customer in (acme, other):
        await platform.use(customer, input=1_000_000)
    month = await platform.end_month()
    await close_month(platform.database, month, by="fin")
    read: list[tuple[UUID, str]] = []
    load = corrections.usage_groups

    async def watched(*args: Any, **named: Any) -> list[UsageGroup]:
        found = await load(*args, **named)
        read.extend((group.tenant_id, group.model) for group in found)
        return found

    monkeypatch.setattr(corrections, "usage_groups", watched)

    async def reads(spec: dict[str, Any]) -> set[tuple[UUID, str]]:
        read.clear()
        async with platform.database.read() as connection:
            told = await dry_run(connection, month, parse_spec(spec))
        assert told.lines
        return set(read)

    own = {"rates": [{**HALF["rates"][0], "tenant_id": str(other.tenant_id)}]}
    assert await reads(own) == {(other.tenant_id, MODEL)}
    # The commitment of one customer needs the rest of its usage, which is on its invoice.
    assert await reads(HALF) == {(acme.tenant_id, MODEL), (other.tenant_id, MODEL)}
