"""Budgets and low balances: each threshold fires once per month and scope, from exact spending."""

import asyncio
from uuid import UUID

import pytest
from sqlalchemy import text

from admin import accounts as admin_accounts
from admin import alerts as admin_alerts
from admin import credits as admin_credits
from billing.notifications.alerts import evaluate
from billing.notifications.endpoints import NoticeView
from billing.usage.rollups import roll_up
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound, PermissionDenied
from core.ids import uuid7
from core.tokens import TokenUsage
from tests.integration.billing.spending import settle_one
from tests.integration.billing.support import Customer, make_customer, price
from tests.support.tenancy import ADMIN, member


async def told(database: Database, tenant_id: UUID) -> list[NoticeView]:
    return list(reversed(await admin_alerts.list_notices(database, ADMIN, tenant_id=tenant_id)))


async def spend(database: Database, customer: Customer, tokens: int) -> None:
    """At $10 per million output tokens."""
    await settle_one(database, customer, TokenUsage(output=tokens))


async def test_the_organisations_budget_needs_no_rule(database: Database) -> None:
    await price(database)
    customer = await make_customer(database, "100")
    await admin_accounts.set_budget(database, ADMIN, tenant_id=customer.tenant_id, usd="1")
    await spend(database, customer, 49_999)
    assert await evaluate(database) == 0
    await spend(database, customer, 1)
    assert await evaluate(database) == 1
    assert await evaluate(database) == 0
    await spend(database, customer, 45_000)
    results = await asyncio.gather(*(evaluate(database) for _ in range(4)))
    assert sum(results) == 1
    await spend(database, customer, 5_000)
    assert await evaluate(database) == 1
    notices = await told(database, customer.tenant_id)
    assert [n.facts["threshold_pct"] for n in notices] == [50, 80, 100]
    assert [n.facts["spent_usd"] for n in notices] == ["0.50", "0.95", "1.00"]
    assert "402" in notices[-1].body
    [view] = await admin_alerts.list_alerts(database, member(customer.tenant_id))
    assert (view.id, view.fired, view.current_usd, view.amount_usd) == (None, [50, 80, 100], "1.00", "1.00")


@pytest.mark.parametrize("rolled", [False, True])
async def test_projects_and_keys_have_budgets_of_their_own(database: Database, rolled: bool) -> None:
    await price(database)
    customer, other = await make_customer(database, "100"), await make_customer(database, "100", name="Other")
    for scope, scope_id, usd, marks in (
        ("project", customer.project_id, "1", [10, 90]),
        ("key", customer.key_id, "0.5", None),
    ):
        await admin_alerts.set_alert(
            database,
            ADMIN,
            tenant_id=customer.tenant_id,
            kind="budget",
            scope=scope,  # type: ignore[arg-type]
            scope_id=scope_id,
            amount_usd=usd,
            thresholds=marks,
        )
    await spend(database, other, 500_000)
    assert await evaluate(database) == 0
    await spend(database, customer, 95_000)
    if rolled:
        async with database.system() as connection:  # as if the hour were over
            await connection.execute(
                text("SELECT penstock_roll_hour(date_trunc('hour', clock_timestamp(), 'UTC'))")
            )
    assert await evaluate(database) == 2
    assert await evaluate(database) == 0
    facts = {n.facts["scope"]: n.facts for n in await told(database, customer.tenant_id)}
    assert facts["project"]["threshold_pct"] == 90
    assert facts["key"]["threshold_pct"] == 100
    assert {f["spent_usd"] for f in facts.values()} == {"0.95"}
    assert await told(database, other.tenant_id) == []
    await roll_up(database)


async def test_a_low_balance_is_told_once_until_it_is_filled_up(database: Database) -> None:
    await price(database)
    customer = await make_customer(database, "1")
    await admin_alerts.set_alert(
        database, ADMIN, tenant_id=customer.tenant_id, kind="low_balance", amount_usd="0.5"
    )
    assert await evaluate(database) == 0
    await spend(database, customer, 60_000)
    assert [await evaluate(database) for _ in range(2)] == [1, 0]
    await admin_credits.grant_credit(
        database, ADMIN, tenant_id=customer.tenant_id, amount_usd="1", reason="more"
    )
    assert await evaluate(database) == 0
    await spend(database, customer, 100_000)
    assert [await evaluate(database) for _ in range(2)] == [1, 0]
    notices = await told(database, customer.tenant_id)
    assert [n.facts["balance_usd"] for n in notices] == ["0.40", "0.40"]


async def test_what_cannot_be_a_rule_changes_nothing(database: Database) -> None:
    customer, other = await make_customer(database, "1"), await make_customer(database, "1", name="Other")
    postpaid = await make_customer(database, mode="postpaid", name="Later")

    async def refused(error: type[Exception], tenant: Customer = customer, **facts: object) -> None:
        with pytest.raises(error):
            await admin_alerts.set_alert(database, ADMIN, tenant_id=tenant.tenant_id, **facts)  # type: ignore[arg-type]

    project = {"kind": "budget", "scope": "project", "scope_id": customer.project_id}
    await refused(InvalidRequest, **project)
    for usd in ("-1", "0", "1e99", "x", "0.0000000000001"):
        await refused(InvalidRequest, **project, amount_usd=usd)
    for marks in ([], [0], [1001], list(range(1, 12))):
        await refused(InvalidRequest, **project, amount_usd="1", thresholds=marks)
    await refused(NotFound, **{**project, "scope_id": other.project_id}, amount_usd="1")
    await refused(NotFound, kind="budget", scope="key", scope_id=uuid7(), amount_usd="1")
    await refused(InvalidRequest, kind="budget", scope="tenant", amount_usd="1")
    await refused(InvalidRequest, kind="low_balance", amount_usd="1", thresholds=[50])
    await refused(InvalidRequest, kind="low_balance", scope="key", scope_id=customer.key_id, amount_usd="1")
    await refused(Conflict, tenant=postpaid, kind="low_balance", amount_usd="1")
    await refused(NotFound, tenant=Customer(), kind="low_balance", amount_usd="1")
    assert await admin_alerts.list_alerts(database, ADMIN) == []
    with pytest.raises(PermissionDenied):
        await admin_alerts.set_alert(
            database,
            member(other.tenant_id),
            tenant_id=customer.tenant_id,
            kind="low_balance",
            amount_usd="1",
        )
    with pytest.raises(NotFound):
        await admin_alerts.remove_alert(
            database, ADMIN, tenant_id=customer.tenant_id, kind="budget", scope_id=customer.project_id
        )
