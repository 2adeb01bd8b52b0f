"""Contracts: discounts become prices, follow the list, give way to explicit prices and end with the contract."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from admin import contracts as admin_contracts
from admin import prices as admin_prices
from admin.actor import Actor, system_actor
from billing.ledger.verification import verify
from billing.pricing.prices import PriceView
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound, PermissionDenied
from tests.integration.billing.support import Customer, make_customer

ADMIN = system_actor("test")


async def now(database: Database) -> datetime:
    async with database.read() as connection:
        instant: datetime = (await connection.execute(text("SELECT clock_timestamp()"))).scalar_one()
        return instant


async def priced(database: Database, customer: Customer, at: datetime, model: str = "m") -> Any:
    """Output price and origin (list, derived or own) of the version that `penstock_price` finds."""
    async with database.read() as connection:
        row = (
            await connection.execute(
                text("SELECT * FROM penstock_price(:model, 'standard', :tenant, :at)"),
                {"model": model, "tenant": customer.tenant_id, "at": at},
            )
        ).one()
    if row.id is None:
        return None
    return int(row.output), "list" if row.tenant_id is None else "derived" if row.contract_id else "own"


async def set_price(database: Database, output: str, **facts: Any) -> PriceView:
    return await admin_prices.set_price(
        database, ADMIN, **{"model": "m", "input": "1", "output": output, **facts}
    )


async def add_contract(database: Database, customer: Customer, **facts: Any) -> admin_contracts.ContractView:
    return await admin_contracts.add_contract(
        database, ADMIN, **{"tenant_id": customer.tenant_id, "reason": "deal", **facts}
    )


async def sound(database: Database) -> bool:
    async with database.system() as connection:
        return (await verify(connection)).problems == []


async def test_a_discount_follows_the_list_and_rounds_half_up(database: Database) -> None:
    customer, other = await make_customer(database), await make_customer(database, name="Other")
    await set_price(database, "0.000003")
    contract = await add_contract(database, customer, discount_bps=5000)
    begun = await now(database)
    assert await priced(database, customer, begun) == (2, "derived")  # 1.5 picodollars, half up
    assert await priced(database, other, begun) == (3, "list")
    soon = begun + timedelta(days=10)
    await set_price(database, "0.000008", effective_from=soon)
    await set_price(database, "10", model="new")
    later = await now(database)
    assert await priced(database, customer, later) == (2, "derived")
    assert await priced(database, customer, soon) == (4, "derived")
    assert await priced(database, customer, later, model="new") == (5_000_000, "derived")
    ended = await admin_contracts.end_contract(
        database, ADMIN, contract_id=contract.id, at=soon + timedelta(days=1), reason="cancelled"
    )
    assert ended.effective_to is not None
    assert await priced(database, customer, soon) == (4, "derived")
    assert await priced(database, customer, soon + timedelta(days=1)) == (8, "list")
    await admin_contracts.end_contract(database, ADMIN, contract_id=contract.id, reason="cancelled at once")
    assert await priced(database, customer, await now(database)) == (3, "list")
    assert await priced(database, customer, soon) == (8, "list")
    assert await priced(database, customer, begun) == (2, "derived"), "what was admitted keeps its price"
    assert await sound(database)


async def test_an_explicit_price_wins_and_the_discount_comes_back_after_it(database: Database) -> None:
    customer = await make_customer(database)
    await set_price(database, "10")
    await add_contract(database, customer, discount_bps=1000)
    start = await now(database)
    days = [start + timedelta(days=n) for n in range(8)]
    await set_price(database, "7", tenant_id=customer.tenant_id, effective_from=days[2])
    await admin_prices.end_price(
        database, ADMIN, model="m", tenant_id=customer.tenant_id, at=days[4], reason="special offer over"
    )
    await set_price(database, "20", effective_from=days[5])
    shown = [await priced(database, customer, day + timedelta(hours=1)) for day in days[:7]]
    assert shown == [
        *[(9_000_000, "derived")] * 2,
        *[(7_000_000, "own")] * 2,
        (9_000_000, "derived"),
        *[(18_000_000, "derived")] * 2,
    ]
    assert await sound(database)
    history = await admin_prices.list_prices(database, ADMIN, tenant_id=customer.tenant_id, history=True)
    assert {row.status for row in history} == {"current", "scheduled"}
    assert [row.ended_by for row in history if row.contract_id is None and row.tenant_id] == ["test"]


async def test_future_contracts_commitments_and_terms(database: Database) -> None:
    customer = await make_customer(database, mode="postpaid")
    await set_price(database, "10")
    start = await now(database) + timedelta(days=5)
    sla = {"metric": "ttft", "percentile": 95, "threshold": 800, "credit_percent": 10}
    view = await add_contract(
        database,
        customer,
        effective_from=start,
        effective_to=start + timedelta(days=30),
        discount_bps=2500,
        commit_monthly_usd="5000",
        payment_days=14,
        sla=sla,
    )
    assert (view.commit_monthly_usd, view.payment_days, view.sla) == ("5000.00", 14, sla)
    assert await priced(database, customer, await now(database)) == (10_000_000, "list")
    assert await priced(database, customer, start) == (7_500_000, "derived")
    assert await priced(database, customer, start + timedelta(days=30)) == (10_000_000, "list")
    assert await priced(database, customer, start - timedelta(seconds=1)) == (10_000_000, "list")
    [found] = await admin_contracts.list_contracts(database, ADMIN, tenant_id=customer.tenant_id)
    assert (found.id, found.commit_monthly_usd, found.sla) == (view.id, "5000.00", sla)
    for overlap in (start, start + timedelta(days=29), None):
        with pytest.raises(Conflict, match="another contract"):
            await add_contract(database, customer, effective_from=overlap, effective_to=None)
    await add_contract(database, customer, effective_from=start + timedelta(days=30))
    await admin_contracts.end_contract(database, ADMIN, contract_id=view.id, reason="never mind")
    assert await priced(database, customer, start) == (10_000_000, "list")
    await add_contract(database, customer, effective_from=start, effective_to=start + timedelta(days=30))
    assert len(await admin_contracts.list_contracts(database, ADMIN, tenant_id=customer.tenant_id)) == 2
    assert await sound(database)


@pytest.mark.parametrize(
    ("facts", "param"),
    [
        ({"discount_bps": -1}, "discount_bps"),
        ({"discount_bps": 10001}, "discount_bps"),
        ({"commit_monthly_usd": "0"}, "commit_monthly_usd"),
        ({"commit_monthly_usd": "-1"}, "commit_monthly_usd"),
        ({"commit_monthly_usd": "5"}, "commit_monthly_usd"),  # prepaid: it would never be charged
        ({"payment_days": 366}, "payment_days"),
        ({"currency": "EUR"}, "currency"),
        ({"sla": {"metric": "speed"}}, "sla"),
        ({"effective_from": datetime.fromisoformat("2020-01-01T00:00Z")}, "effective_from"),
        ({"effective_to": datetime.fromisoformat("2020-01-01T00:00Z")}, "effective_to"),
    ],
)
async def test_a_contract_that_makes_no_sense_is_refused(
    database: Database, facts: dict[str, Any], param: str
) -> None:
    customer = await make_customer(database)
    with pytest.raises(InvalidRequest) as refused:
        await add_contract(database, customer, **facts)
    assert refused.value.param == param
    assert await admin_contracts.list_contracts(database, ADMIN) == []


async def test_contracts_are_finances_to_make_and_the_customers_to_see(database: Database) -> None:
    customer, other = await make_customer(database), await make_customer(database, name="Other")
    await add_contract(database, customer, discount_bps=1)
    await add_contract(database, other, discount_bps=2)
    theirs = Actor(kind="user", id="u", label="u", role="tenant_owner", tenant_id=customer.tenant_id)
    assert [row.discount_bps for row in await admin_contracts.list_contracts(database, theirs)] == [1]
    with pytest.raises(PermissionDenied):
        await admin_contracts.add_contract(database, theirs, tenant_id=customer.tenant_id, reason="r")
    with pytest.raises(NotFound):
        await admin_contracts.end_contract(database, ADMIN, contract_id=UUID(int=1), reason="r")


async def test_a_book_has_no_gap_until_somebody_ends_it(database: Database) -> None:
    customer = await make_customer(database)
    first = await now(database)
    await set_price(database, "1")
    days = [first + timedelta(days=n) for n in range(6)]
    two = await set_price(database, "2", effective_from=days[2])
    await set_price(database, "4", effective_from=days[4])
    await set_price(database, "3", effective_from=days[3])
    after = timedelta(hours=1)
    assert [(await priced(database, customer, day + after))[0] for day in days] == [
        n * 10**6 for n in (1, 1, 2, 3, 4, 4)
    ]
    await admin_prices.withdraw_price(database, ADMIN, version=two.id, reason="typing error")
    assert (await priced(database, customer, days[2] + after))[0] == 10**6
    with pytest.raises(Conflict, match="withdrawn"):
        await admin_prices.withdraw_price(database, ADMIN, version=two.id, reason="again")
    with pytest.raises(Conflict, match="current"):
        await admin_prices.withdraw_price(database, ADMIN, version=two.id - 1, reason="running")
    assert await sound(database)
    ended = await admin_prices.end_price(database, ADMIN, model="m", at=days[3], reason="retired")
    assert [row.status for row in ended] == ["current", "withdrawn", "withdrawn"]
    assert await priced(database, customer, days[3]) is None
    with pytest.raises(NotFound):
        await admin_prices.end_price(database, ADMIN, model="m", at=days[3], reason="again")
    await set_price(database, "9", effective_from=days[5])
    assert await priced(database, customer, days[4]) is None
    assert await priced(database, customer, days[5]) == (9 * 10**6, "list")
    assert await sound(database)


step = st.tuples(
    st.sampled_from(["list", "own", "contract", "end list", "end own", "end contract"]),
    st.integers(1, 12),
    st.integers(1, 6),
    st.integers(1, 9),
)


async def _history(database: Database, steps: list[tuple[str, int, int, int]]) -> None:
    """Every day's price equals the one that the model computes from the changes."""
    customer = await make_customer(database)
    base = await now(database) + timedelta(days=1)
    model = f"m-{customer.tenant_id}"
    listed: dict[int, int | None] = {}
    own: dict[int, int | None] = {}
    contracts: list[list[Any]] = []
    for what, day, length, number in steps:
        at = base + timedelta(days=day)
        try:
            if what in ("list", "own"):
                tenant = customer.tenant_id if what == "own" else None
                await set_price(database, str(number), model=model, tenant_id=tenant, effective_from=at)
                (own if tenant else listed)[day] = number * 10**6
            elif what == "contract":
                view = await add_contract(
                    database,
                    customer,
                    discount_bps=number * 1000,
                    effective_from=at,
                    effective_to=at + timedelta(days=length),
                )
                contracts.append([day, day + length, number * 1000, view.id])
            elif what == "end contract" and contracts:
                one = contracts[length % len(contracts)]
                await admin_contracts.end_contract(database, ADMIN, contract_id=one[3], at=at, reason="r")
                one[1] = max(min(one[1], day), one[0])
            elif what != "end contract":
                book = own if what == "end own" else listed
                tenant = customer.tenant_id if what == "end own" else None
                await admin_prices.end_price(
                    database, ADMIN, model=model, tenant_id=tenant, at=at, reason="r"
                )
                for later in [start for start in book if start >= day]:
                    del book[later]
                if book:
                    book[day] = None
        except (Conflict, NotFound):
            continue
    for day in range(1, 20):
        standing = _at(listed, day)
        wanted: Any = None if standing is None else (standing, "list")
        for start, end, bps, _ in contracts:
            if standing is not None and start <= day < end:
                wanted = ((standing * (10_000 - bps) + 5_000) // 10_000, "derived")
        special = _at(own, day)
        if special is not None:
            wanted = (special, "own")
        assert await priced(database, customer, base + timedelta(days=day, hours=1), model) == wanted
    assert await sound(database)


def _at(book: dict[int, int | None], day: int) -> int | None:
    """The price of a book on a day: that of the last start; None = ended or not begun."""
    starts = [start for start in book if start <= day]
    return book[max(starts)] if starts else None


def test_any_history_of_prices_reads_as_it_was_written(pg_url: str) -> None:
    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    @given(steps=st.lists(step, min_size=3, max_size=8))
    def play(steps: list[tuple[str, int, int, int]]) -> None:
        runner.run(_history(database, steps))

    with asyncio.Runner() as runner:
        database = Database(pg_url)
        try:
            play()
        finally:
            runner.run(database.close())


async def test_ending_a_contract_inside_a_month_warns_of_what_remains_due(database: Database) -> None:
    customer = await make_customer(database, mode="postpaid")
    begins = datetime(2031, 6, 1, tzinfo=UTC)
    made = await add_contract(database, customer, commit_monthly_usd="3000", effective_from=begins)
    told = await admin_contracts.end_warning(
        database, ADMIN, contract_id=made.id, at=begins + timedelta(days=10)
    )
    ended = await admin_contracts.end_contract(
        database, ADMIN, contract_id=made.id, at=begins + timedelta(days=10), reason="r"
    )
    assert ended.commitment_due_usd == "1000.00"
    assert ended.warning == told
    assert told is not None
    assert "2031-06" in told
    assert "$1000.00" in told


@pytest.mark.parametrize(("commit", "days"), [("3000", 30), ("3000", 0), (None, 10)])
async def test_ending_a_contract_with_a_month_without_a_commitment_or_before_it_began_warns_of_nothing(
    database: Database, commit: str | None, days: int
) -> None:
    customer = await make_customer(database, mode="postpaid")
    begins = datetime(2031, 6, 1, tzinfo=UTC)
    made = await add_contract(database, customer, commit_monthly_usd=commit, effective_from=begins)
    at = begins + timedelta(days=days)
    assert await admin_contracts.end_warning(database, ADMIN, contract_id=made.id, at=at) is None
    ended = await admin_contracts.end_contract(database, ADMIN, contract_id=made.id, at=at, reason="r")
    assert (ended.commitment_due_usd, ended.warning) == (None, None)
