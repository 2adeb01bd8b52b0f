"""Price books, accounts and the administrative acts on them."""

from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from admin import accounts as admin_accounts
from admin import credits as admin_credits
from admin import prices as admin_prices
from admin.actor import Actor, system_actor
from billing.pricing.prices import Rates
from billing.reports.activity import activity
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound, PermissionDenied
from core.ids import uuid7
from tests.integration.billing.reports.test_report import now_hour
from tests.integration.billing.support import Customer, make_customer, price

ADMIN = system_actor("test")


def viewer(customer: Customer, role: str = "tenant_viewer") -> Actor:
    return Actor(kind="user", id="u", label="u", role=role, tenant_id=customer.tenant_id)  # type: ignore[arg-type]


async def set_price(database: Database, **changes: object) -> admin_prices.PriceView:
    facts: dict[str, object] = {"model": "m", "input": "1", "output": "2", **changes}
    return await admin_prices.set_price(database, ADMIN, **facts)  # type: ignore[arg-type]


async def test_a_new_price_ends_the_one_before_and_stops_at_the_next(database: Database) -> None:
    later = await now_hour(database) + timedelta(days=7)
    first = await set_price(database)
    scheduled = await set_price(database, input="3", effective_from=later)
    second = await set_price(database, input="2")
    rows = {row.id: row for row in await admin_prices.list_prices(database, ADMIN, history=True)}
    assert rows[first.id].effective_to == rows[second.id].effective_from
    assert rows[second.id].effective_to == rows[scheduled.id].effective_from == later.isoformat()
    assert rows[scheduled.id].effective_to is None
    assert (rows[first.id].cached_input, rows[first.id].reasoning) == ("1.00", "2.00")
    current = await admin_prices.list_prices(database, ADMIN)
    assert [row.id for row in current] == [second.id, scheduled.id]
    with pytest.raises(Conflict):
        await set_price(database, input="4", effective_from=later)
    with pytest.raises(InvalidRequest, match="past"):
        await set_price(database, effective_from=later - timedelta(days=30))


@pytest.mark.parametrize(
    "changes",
    [
        {"input": "-1"},
        {"output": "0.0000001"},
        {"input": "abc"},
        {"tier": "gold"},
        {"model": ""},
        {"output": "1e99"},
    ],
)
async def test_wrong_prices_are_refused(database: Database, changes: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        await set_price(database, **changes)
    assert await admin_prices.list_prices(database, ADMIN, history=True) == []


@pytest.mark.parametrize(
    ("values", "constraint"),
    [
        ("'m', 'standard', NULL, 1, 1, 1, 1, tstzrange('2026-02-01', NULL)", "overlap"),
        ("'m', 'standard', NULL, 1, 1, -1, 1, tstzrange('2020-01-01', '2020-02-01')", "not_negative"),
        ("'m', 'standard', NULL, 1, 1, 1, 1, 'empty'", "effective"),
    ],
)
async def test_the_database_itself_refuses(database: Database, values: str, constraint: str) -> None:
    insert = (
        "INSERT INTO price_versions (model, tier, tenant_id, input, cached_input, output, reasoning, effective, "
        "created_by) VALUES ({}, 't')"
    )
    async with database.system() as connection:
        first = "'m', 'standard', NULL, 1, 1, 1, 1, tstzrange('2026-01-01', NULL)"
        await connection.execute(text(insert.format(first)))
    with pytest.raises(IntegrityError, match=constraint):
        async with database.system() as connection:
            await connection.execute(text(insert.format(values)))


async def test_catalog_prices_fill_gaps_only(database: Database) -> None:
    await price(database, model="set")
    rates = Rates("1", "1", "1", "1")
    made = await admin_prices.ensure_list_prices(database, ADMIN, {"set": rates, "new": rates})
    assert [row.model for row in made] == ["new"]
    assert await admin_prices.ensure_list_prices(database, ADMIN, {"set": rates, "new": rates}) == []


async def test_credit_is_given_once_per_grant_and_audited(database: Database) -> None:
    customer = await make_customer(database)
    grant_id = uuid7()
    for _ in range(2):
        account = await admin_credits.grant_credit(
            database,
            ADMIN,
            tenant_id=customer.tenant_id,
            amount_usd="12.50",
            reason="welcome",
            grant_id=grant_id,
        )
    assert (account.balance_usd, account.available_usd) == ("12.50", "12.50")
    grants = await admin_credits.list_grants(database, ADMIN, tenant_id=customer.tenant_id)
    assert [(one.amount_usd, one.reason) for one in grants] == [("12.50", "welcome")]
    async with database.system() as connection:
        audited = await connection.execute(text("SELECT action FROM audit_log WHERE action = 'credit.grant'"))
        assert len(audited.all()) == 1


@pytest.mark.parametrize("amount", ["0", "-5", "abc", "NaN", "1.0000000000001", "1" + "0" * 20])
async def test_wrong_amounts_are_refused(database: Database, amount: str) -> None:
    customer = await make_customer(database)
    with pytest.raises(InvalidRequest):
        await admin_credits.grant_credit(
            database, ADMIN, tenant_id=customer.tenant_id, amount_usd=amount, reason="r"
        )


async def test_budgets_and_limits(database: Database) -> None:
    prepaid = await make_customer(database, "10")
    postpaid = await make_customer(database, mode="postpaid", name="Later")
    owner = viewer(prepaid, "tenant_owner")
    account = await admin_accounts.set_budget(database, owner, tenant_id=prepaid.tenant_id, usd="4")
    assert (account.budget_usd, account.available_usd) == ("4.00", "4.00")
    account = await admin_accounts.set_budget(database, owner, tenant_id=prepaid.tenant_id, usd=None)
    assert account.budget_usd is None
    with pytest.raises(Conflict):
        await admin_accounts.set_credit_limit(
            database, ADMIN, tenant_id=prepaid.tenant_id, usd="1", reason="r"
        )
    account = await admin_accounts.get_account(database, ADMIN, tenant_id=postpaid.tenant_id)
    assert account.available_usd is None
    account = await admin_accounts.set_credit_limit(
        database, ADMIN, tenant_id=postpaid.tenant_id, usd="100", reason="contract"
    )
    assert account.available_usd == "100.00"
    with pytest.raises(Conflict):
        await admin_credits.grant_credit(
            database, ADMIN, tenant_id=postpaid.tenant_id, amount_usd="1", reason="r"
        )


async def test_roles(database: Database) -> None:
    mine, other = (
        await make_customer(database, "1", name="Mine"),
        await make_customer(database, "1", name="Other"),
    )
    await price(database)
    await price(database, tenant_id=other.tenant_id, output="5")
    await price(database, tenant_id=mine.tenant_id, output="6")
    actor = viewer(mine)
    assert (await admin_accounts.get_account(database, actor, tenant_id=mine.tenant_id)).balance_usd == "1.00"
    prices = await admin_prices.list_prices(database, actor, tenant_id=other.tenant_id)
    assert {row.tenant_id for row in prices} == {None, mine.tenant_id}
    for act in (
        admin_accounts.get_account(database, actor, tenant_id=other.tenant_id),
        admin_credits.list_grants(database, actor, tenant_id=other.tenant_id),
        admin_accounts.set_budget(database, actor, tenant_id=mine.tenant_id, usd="1"),
        admin_credits.grant_credit(database, actor, tenant_id=mine.tenant_id, amount_usd="1", reason="r"),
        admin_prices.set_price(database, actor, model="m", input="0", output="0"),
    ):
        with pytest.raises(PermissionDenied):
            await act
    with pytest.raises(NotFound):
        await admin_accounts.get_account(database, ADMIN, tenant_id=UUID(int=1))


async def test_activity_of_nothing(database: Database) -> None:
    async with database.read() as connection:
        found = await activity(connection, await now_hour(database))
    assert (found.requests, found.cost_usd, found.ttft_p50_ms, found.minutes) == (0, "0.00", None, [])


async def test_partitions_are_made_ahead_and_take_in_strays(database: Database, pg_url: str) -> None:
    import asyncpg

    owner = await asyncpg.connect(pg_url)
    try:
        month = "(date_trunc('month', now() AT TIME ZONE 'UTC') + interval '3 months') AT TIME ZONE 'UTC'"
        stray = await owner.fetchval(f"SELECT penstock_uuid_floor({month} + interval '1 day')")
        await owner.execute(
            "INSERT INTO holds (request_id, tenant_id, project_id, key_id, model, incarnation, price_version, "
            "output_tokens, amount, admitted_at, renewed_at) "
            "VALUES ($1, $1, $1, $1, 'm', 'i', 1, 1, 0, now(), now())",
            stray,
        )
        where = "SELECT tableoid::regclass::text FROM holds WHERE request_id = $1"
        assert await owner.fetchval(where, stray) == "holds_default"
        async with database.system() as connection:
            made = await connection.execute(text("SELECT penstock_make_partitions(3)"))
            assert made.scalar_one() == 2
        assert (await owner.fetchval(where, stray)).startswith("holds_20")
    finally:
        await owner.close()
