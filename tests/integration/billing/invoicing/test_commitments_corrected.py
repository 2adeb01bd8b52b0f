"""Whatever late usage and corrections follow, each month costs its usage at corrected prices, or its commitment."""

from datetime import date, timedelta
from typing import Any, NamedTuple

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from billing.invoicing.correction_views import Correction
from billing.invoicing.corrections import dry_run
from billing.invoicing.rerate import parse_spec
from billing.invoicing.run import make_invoices
from billing.ledger.months import bounds, next_month
from core.money import PICO_PER_USD, usd_to_pico
from tests.integration.billing.invoicing.correcting import DOUBLE, HALF, decide, request, reverse
from tests.integration.billing.invoicing.support import Platform
from tests.integration.billing.support import MODEL, Customer, make_customer, price
from tests.support.closing import close_month

PRICES = ("0", "0.5", "1", "2", "3")
"""Dollars per million tokens; usage is pinned at 1."""


class Step(NamedTuple):
    """A correction of one of the two months, or the reversal of an earlier step."""

    month: int
    price: str
    reverses: int | None = None


steps = st.lists(
    st.builds(Step, st.integers(0, 1), st.sampled_from(PRICES), st.none() | st.integers(0, 3)), max_size=4
)


async def shortfall(platform: Platform, customer: Customer, month: date) -> int:
    """The shortfall of a month as all invoices and corrections have billed it."""
    return int(
        await platform.one(
            "SELECT coalesce(sum(amount), 0) FROM ("
            "SELECT l.exact AS amount FROM invoice_lines l JOIN invoices i ON i.id = l.invoice_id "
            "WHERE l.kind = 'commit' AND coalesce(l.used_in, i.month) = :month AND l.tenant_id = :tenant UNION ALL "
            "SELECT l.delta FROM correction_lines l JOIN corrections c ON c.id = l.correction_id "
            "WHERE l.kind = 'commit' AND coalesce(l.used_in, c.month) = :month AND l.tenant_id = :tenant "
            "AND c.status = 'approved') billed",
            month=month,
            tenant=customer.tenant_id,
        )
    )


class Books:
    """Two invoiced months of a customer, and what they must cost: late usage is on the second's invoice."""

    def __init__(self, committed: int, used: int, late: int, used_later: int) -> None:
        self.committed = committed * PICO_PER_USD
        self.million = (used, late, used_later)
        self.changes: dict[int, tuple[int, int]] = {}
        """By step: the month that it corrects, and by how much a million tokens cost more."""

    def cost_of_million(self, month: int) -> int:
        """Picodollars of a million tokens on the invoice of a month, after all corrections."""
        return PICO_PER_USD + sum(more for one, more in self.changes.values() if one == month)

    def worth(self) -> tuple[int, int]:
        """What counts towards the commitment of each month."""
        used, late, used_later = self.million
        first, second = self.cost_of_million(0), self.cost_of_million(1)
        return used * first + late * second, used_later * second


async def check(platform: Platform, customer: Customer, months: tuple[date, date], books: Books) -> None:
    worth = books.worth()
    assert [await shortfall(platform, customer, month) for month in months] == [
        max(books.committed - one, 0) for one in worth
    ]
    assert await platform.balance(customer, "revenue") == -sum(max(books.committed, one) for one in worth)


def to(usd: str) -> dict[str, Any]:
    return {"rates": [{"model": MODEL, "input": usd, "output": "1"}]}


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(1, 8), st.integers(0, 4), st.integers(1, 4), st.integers(0, 4), st.sampled_from(PRICES), steps
)
@example(5, 2, 1, 0, "1", [Step(1, "3")])
@example(5, 2, 2, 1, "2", [Step(0, "3"), Step(1, "0.5"), Step(0, "1", reverses=0)])
async def test_each_month_costs_its_usage_or_its_commitment(
    platform: Platform, committed: int, used: int, late: int, used_later: int, early: str, plan: list[Step]
) -> None:
    """`early` corrects the second month before its invoice is made, the steps of `plan` both months afterwards."""
    if not await platform.rows("SELECT 1 FROM price_versions"):
        await price(platform.database)
    acme = await make_customer(platform.database, mode="postpaid", name=f"A{await platform.clock.now()}"[:20])
    first = (await platform.clock.now()).date().replace(day=1)
    books = Books(committed, used, late, used_later)
    await platform.commit_to(acme, books.committed, since=bounds(first)[0])
    if used:
        await platform.use(acme, input=used * 1_000_000)
    months = (first, next_month(first))
    assert await platform.end_month() == months[0]
    await make_invoices(platform.database, months[0])
    await platform.use(acme, input=late * 1_000_000, ended_at=bounds(months[1])[0] - timedelta(hours=1))
    if used_later:
        await platform.use(acme, input=used_later * 1_000_000)
    done: dict[int, Correction] = {}

    async def correct(number: int, month: int, usd: str) -> None:
        more = usd_to_pico(usd) - books.cost_of_million(month)
        if more == 0 or not (used if month == 0 else late + used_later):
            return
        spec = {**to(usd), "tenant_id": str(acme.tenant_id)}
        done[number] = await decide(platform, await request(platform, months[month], spec))
        books.changes[number] = (month, more)

    await platform.clock.set(await platform.clock.now() + timedelta(hours=2))
    await correct(-1, 1, early)
    assert await platform.end_month() == months[1]
    await make_invoices(platform.database, months[1])
    await check(platform, acme, months, books)
    for number, step in enumerate(plan):
        if step.reverses is None:
            await correct(number, step.month, step.price)
        elif step.reverses in books.changes:
            month, more = books.changes[step.reverses]
            if books.cost_of_million(month) < more:
                continue  # another correction has lowered the price meanwhile
            await decide(platform, await reverse(platform, done[step.reverses]))
            del books.changes[step.reverses]
        await check(platform, acme, months, books)
    await platform.is_sound()


async def test_the_shortfall_of_the_earlier_month_is_an_adjustment_that_names_it(platform: Platform) -> None:
    await price(platform.database)
    acme = await make_customer(platform.database, mode="postpaid")
    await platform.commit_to(acme, 5 * PICO_PER_USD, since=bounds(platform.month)[0])
    await platform.use(acme, input=2_000_000)
    month = await platform.end_month()
    await close_month(platform.database, month, by="fin")
    await platform.use(acme, input=1_000_000, ended_at=bounds(next_month(month))[0] - timedelta(hours=1))
    await platform.use(acme, input=6_000_000)
    second = await platform.end_month()
    await close_month(platform.database, second, by="fin")
    async with platform.database.read() as connection:
        told = await dry_run(connection, second, parse_spec(DOUBLE))
    assert [(line.kind, line.used_in, line.delta_usd) for line in told.lines] == [
        ("usage", None, "6.00"),
        ("late_usage", month, "1.00"),
        ("commit", month, "-1.00"),
    ]
    done = await decide(platform, await request(platform, second, DOUBLE))
    found = await platform.rows("SELECT corrects, amount FROM adjustments ORDER BY corrects")
    assert [(row.corrects, int(row.amount)) for row in found] == [
        (month, PICO_PER_USD),
        (second, -7 * PICO_PER_USD),
    ]
    third = await platform.end_month()
    await make_invoices(platform.database, third)
    lines = [
        (one.description, one.cents) for one in await platform.lines(acme, third) if one.kind == "adjustment"
    ]
    assert sorted(lines) == [
        (f"Adjustment of {month:%Y-%m}: a wrong price", -100),
        (f"Adjustment of {second:%Y-%m}: a wrong price", 700),
    ]
    await decide(platform, await reverse(platform, done))
    assert int(await platform.one("SELECT sum(amount) FROM adjustments")) == 0
    await decide(platform, await request(platform, second, HALF))
    assert await shortfall(platform, acme, month) == 5 * PICO_PER_USD // 2
    await platform.is_sound()
