"""Requests around the end of a month: the budget counts a request in the month of its usage row."""

from collections.abc import AsyncIterator
from datetime import date, timedelta

import pytest

from billing.ledger.months import bounds, next_month
from core.money import PICO_PER_USD
from tests.integration.billing.invoicing.support import Platform
from tests.integration.billing.support import Customer, account, make_customer, price


@pytest.fixture
async def platform(pg_url: str) -> AsyncIterator[Platform]:
    """A platform whose clock can be moved; one million input tokens cost a dollar."""
    platform = await Platform.begin(pg_url)
    await price(platform.database)
    yield platform
    await platform.database.close()


async def counted(platform: Platform, customer: Customer) -> tuple[date, int]:
    """The month of the budget's counter, and the dollars it counts."""
    found = await account(platform.database, customer)
    return found.month, int(found.spent_month) // PICO_PER_USD


async def used(platform: Platform, customer: Customer, month: date) -> int:
    """The dollars of the customer's usage rows of a month."""
    start, end = bounds(month)
    cost = await platform.one(
        "SELECT coalesce(sum(cost), 0) FROM usage WHERE tenant_id = :tenant AND ended_at >= :start AND ended_at < :end",
        tenant=customer.tenant_id,
        start=start,
        end=end,
    )
    return int(cost) // PICO_PER_USD


@pytest.mark.parametrize("mode", ["postpaid", "prepaid"])
async def test_the_budget_counts_a_request_in_the_month_of_its_row(platform: Platform, mode: str) -> None:
    acme = await make_customer(platform.database, "100", mode=mode)
    first, second = platform.month, next_month(platform.month)
    midnight = bounds(first)[1]
    await platform.use(acme, input=1_000_000)
    await platform.clock.set(midnight + timedelta(seconds=2))
    # It ended before midnight and is settled after it.
    await platform.use(acme, input=2_000_000, ended_at=midnight - timedelta(seconds=1))
    assert await counted(platform, acme) == (first, await used(platform, acme, first)) == (first, 3)
    assert (
        await platform.one(
            "SELECT penstock_spent(b) FROM billing_accounts b WHERE tenant_id = :t", t=acme.tenant_id
        )
        == 0
    )
    # It was admitted before midnight and ended after it.
    await platform.use(acme, input=4_000_000, ended_at=midnight + timedelta(milliseconds=500))
    assert await counted(platform, acme) == (second, await used(platform, acme, second)) == (second, 4)
    # What comes later for the earlier month is in that month's row and no longer in the budget.
    await platform.use(acme, input=8_000_000, ended_at=midnight - timedelta(seconds=1))
    assert await counted(platform, acme) == (second, 4)
    assert await used(platform, acme, first) == 11
    await platform.is_sound()


async def test_usage_dated_to_its_settlement_counts_in_that_month(platform: Platform) -> None:
    acme = await make_customer(platform.database, mode="postpaid")
    first, second = platform.month, next_month(platform.month)
    await platform.clock.set(bounds(first)[1] + timedelta(days=3))
    await platform.use(acme, input=1_000_000, ended_at=bounds(first)[1] - timedelta(seconds=1))
    assert await counted(platform, acme) == (second, await used(platform, acme, second)) == (second, 1)


async def test_one_batch_of_both_months_is_counted_in_each(platform: Platform) -> None:
    """A batch mixes requests of both months, as it does in the second around midnight."""
    acme = await make_customer(platform.database, mode="postpaid")
    first, second = platform.month, next_month(platform.month)
    midnight = bounds(first)[1]
    await platform.clock.set(midnight + timedelta(seconds=2))
    before = await platform.record(acme, input=1_000_000, ended_at=midnight - timedelta(seconds=1))
    after = await platform.record(acme, input=2_000_000, ended_at=midnight + timedelta(seconds=1))
    assert await platform.settle([before, after]) == ["settled", "settled"]
    assert await counted(platform, acme) == (second, 2)
    assert (await used(platform, acme, first), await used(platform, acme, second)) == (1, 2)
