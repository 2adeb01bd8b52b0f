"""Thresholds of the budget of every end user: one digest per threshold and day, however many end users there are."""

import asyncio

from sqlalchemy import text

from admin import alerts as admin_alerts
from billing.metering import label_budgets
from billing.notifications.end_user_alerts import send_digests
from billing.notifications.endpoints import NoticeView
from core.db import Database
from core.money import PICO_PER_USD
from tests.integration.billing.support import Customer, make_customer
from tests.support.tenancy import ADMIN


async def counted(database: Database, customer: Customer, count: int, usd: str, first: int = 0) -> None:
    """Let end users, who have no budget of their own, have spent so much in this month."""
    async with database.system() as connection:
        await connection.execute(
            text(
                "INSERT INTO scope_budgets (scope_id, tenant_id, scope, label, month, held, spent_month) "
                "SELECT penstock_label_scope(:tenant, 'user=u' || n), :tenant, 'end_user', 'user=u' || n, "
                "date_trunc('month', clock_timestamp() AT TIME ZONE 'UTC')::date, 0, "
                "CAST(CAST(:usd AS text) AS numeric) * :pico + n "
                "FROM generate_series(CAST(:first AS int), CAST(:first AS int) + :count - 1) n "
                "ON CONFLICT (scope_id) DO UPDATE SET spent_month = excluded.spent_month"
            ),
            {
                "tenant": customer.tenant_id,
                "usd": usd,
                "pico": PICO_PER_USD,
                "first": first,
                "count": count,
            },
        )


async def budgeted(database: Database, name: str = "Acme") -> Customer:
    """An organisation whose end users have a budget of $2 each."""
    customer = await make_customer(database, "100", name=name)
    async with database.system() as connection:
        await label_budgets.set_budget(
            connection, customer.tenant_id, label_budgets.EVERY_END_USER, 2 * PICO_PER_USD, stops=True
        )
    return customer


async def told(database: Database, customer: Customer) -> list[NoticeView]:
    return list(reversed(await admin_alerts.list_notices(database, ADMIN, tenant_id=customer.tenant_id)))


async def yesterday(database: Database) -> None:
    """Let the digests so far be those of another day."""
    async with database.engine.begin() as connection:
        await connection.execute(
            text(
                "UPDATE notices SET dedupe_key = dedupe_key || ' before' WHERE dedupe_key LIKE 'end_users|%'"
            )
        )


async def test_a_thousand_end_users_are_one_digest(database: Database) -> None:
    acme, other = await budgeted(database), await budgeted(database, "Other")
    await counted(database, acme, 1_000, "0.999")
    assert await send_digests(database) == 0
    await counted(database, acme, 1_000, "1")
    await counted(database, other, 1, "1.7")
    assert sum(await asyncio.gather(*(send_digests(database) for _ in range(3)))) == 2
    [notice] = await told(database, acme)
    assert notice.kind == "budget.threshold"
    assert notice.subject.startswith("1,000 end users have spent 50 %")
    assert (notice.facts["end_users"], notice.facts["threshold_pct"]) == (1_000, 50)
    names = [one["end_user"] for one in notice.facts["named"]]
    assert names == [f"u{n}" for n in range(999, 979, -1)], "those that have spent most"
    assert "and 980 more" in notice.body
    assert "u979" not in notice.body
    assert "requests go on" in notice.body
    [elsewhere] = await told(database, other)
    assert (elsewhere.facts["threshold_pct"], elsewhere.facts["end_users"]) == (80, 1)
    assert await send_digests(database) == 0


async def test_each_end_user_is_told_once_per_threshold_and_late_ones_the_next_day(
    database: Database,
) -> None:
    acme = await budgeted(database)
    await counted(database, acme, 1, "1")
    assert await send_digests(database) == 1
    await counted(database, acme, 2, "1", first=1)  # after the digest of the day
    assert await send_digests(database) == 0
    await counted(database, acme, 1, "2", first=2)  # one of them passes two more thresholds at once
    assert await send_digests(database) == 1
    last = (await told(database, acme))[-1]
    assert last.facts["threshold_pct"] == 100
    assert [one["end_user"] for one in last.facts["named"]] == ["u2"]
    assert "refused with 402" in last.body
    await yesterday(database)
    assert await send_digests(database) == 1
    last = (await told(database, acme))[-1]
    assert (last.facts["threshold_pct"], [one["end_user"] for one in last.facts["named"]]) == (50, ["u1"])
    await yesterday(database)
    assert await send_digests(database) == 0


async def test_without_the_budget_or_with_one_of_their_own_they_are_in_no_digest(database: Database) -> None:
    acme = await budgeted(database)
    async with database.system() as connection:
        await label_budgets.set_budget(connection, acme.tenant_id, "user=u0", 9 * PICO_PER_USD, stops=True)
    await counted(database, acme, 2, "1.5")
    assert await send_digests(database) == 1
    [notice] = await told(database, acme)
    assert [one["end_user"] for one in notice.facts["named"]] == ["u1"]
    plain = await make_customer(database, "100", name="Plain")
    await counted(database, plain, 3, "50")
    assert await send_digests(database) == 0
