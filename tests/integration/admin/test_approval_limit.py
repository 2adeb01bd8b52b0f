"""Money that one person may move alone: nothing beyond the limit, in one act or in many, by whichever door."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from admin import accounts as admin_accounts
from admin import adjustments as admin_adjustments
from admin import contracts as admin_contracts
from admin import decisions
from admin import prices as admin_prices
from admin import tenants as admin_tenants
from admin.actor import Actor
from admin.approval_limit import expire_all_waiting
from billing.ledger.approvals import WINDOW
from core.db import Database
from core.errors import Conflict, InvalidRequest, WaitsForApproval
from core.ids import uuid7
from tests.integration.admin.two_people import (
    ADA,
    BOB,
    PICO,
    as_owner,
    grant,
    only,
    waiting,
)
from tests.integration.billing.support import Customer, account, make_customer, price
from tests.support.tenancy import ADMIN, audit_actions


async def test_finance_alone_grants_no_million(database: Database) -> None:
    customer = await make_customer(database)
    with pytest.raises(WaitsForApproval) as waits:
        await grant(database, customer, "1000000")
    assert int((await account(database, customer)).balance) == 0
    approval_id = await only(database)
    assert waits.value.details["approval_id"] == str(approval_id)
    with pytest.raises(Conflict, match="another person"):
        await decisions.decide(database, ADA, approval_id=approval_id, approve=True)
    token = Actor(kind="token", id=ADA.id, label="ada.other@example.com", role="platform_admin")
    with pytest.raises(Conflict, match="another person"):
        await decisions.decide(database, token, approval_id=approval_id, approve=True)
    done = await decisions.decide(database, BOB, approval_id=approval_id, approve=True)
    assert done.result is not None
    assert done.result["balance_usd"] == "1000000.00"
    assert int((await account(database, customer)).balance) == 1_000_000 * PICO
    with pytest.raises(Conflict, match="already"):
        await decisions.decide(database, BOB, approval_id=approval_id, approve=True)
    actions = set((await audit_actions(database))[-3:])
    assert actions == {"credit.grant.request", "credit.grant", "credit.grant.approve"}


async def test_a_hundred_small_grants_are_one_large_one(database: Database) -> None:
    customer, other = await make_customer(database), await make_customer(database, name="Other")
    outcomes = await asyncio.gather(
        *(grant(database, customer, "30") for _ in range(10)), return_exceptions=True
    )
    alone = [one for one in outcomes if not isinstance(one, BaseException)]
    assert (len(alone), int((await account(database, customer)).balance)) == (3, 90 * PICO)
    assert await waiting(database) == ["credit.grant"] * 7
    with pytest.raises(WaitsForApproval):  # other acts count too
        await grant(database, customer, "10.01", kind="purchased")
    adjusted = await admin_adjustments.request_adjustment(
        database, ADA, tenant_id=customer.tenant_id, amount_usd="-11", reason="r"
    )
    assert adjusted.status == "waiting"
    await grant(database, customer, "10")
    await grant(database, other, "100")  # another organisation, and another person, have a limit of their own
    await grant(database, customer, "100", BOB)


async def test_what_another_person_approved_uses_up_no_limit(database: Database) -> None:
    customer = await make_customer(database)
    with pytest.raises(WaitsForApproval):
        await grant(database, customer, "1000")
    await decisions.decide(database, BOB, approval_id=await only(database), approve=True)
    await grant(database, customer, "100")
    with pytest.raises(WaitsForApproval):
        await grant(database, customer, "0.01")


async def test_the_window_rolls(database: Database, pg_url: str) -> None:
    customer = await make_customer(database)
    await grant(database, customer, "100")
    with pytest.raises(WaitsForApproval):
        await grant(database, customer, "1")
    await as_owner(
        pg_url, f"UPDATE approvals SET requested_at = requested_at - interval '{WINDOW.days} days'"
    )
    await grant(database, customer, "1")


async def test_what_waits_too_long_expires(database: Database, pg_url: str) -> None:
    customer, grant_id = await make_customer(database), uuid7()
    for _ in range(2):
        with pytest.raises(WaitsForApproval):
            await grant(database, customer, "500", grant_id=grant_id)
        approval_id = await only(database)
        await as_owner(pg_url, "UPDATE approvals SET expires_at = expires_at - interval '14 days'")
        with pytest.raises(Conflict, match="waited too long and expired"):
            await decisions.decide(database, BOB, approval_id=approval_id, approve=True)
    assert await expire_all_waiting(database) == 1  # the second request had expired the first
    assert await expire_all_waiting(database) == 0
    assert await waiting(database) == []
    expired = await decisions.list_approvals(database, BOB, expired=True)
    assert [(one.decision, one.decided_by) for one in expired] == [("expired", "penstock.approvals")] * 2
    for approve in (True, False):
        with pytest.raises(Conflict, match="request it again"):
            await decisions.decide(database, BOB, approval_id=approval_id, approve=approve)
    assert (await audit_actions(database)).count("credit.grant.expire") == 2
    assert int((await account(database, customer)).balance) == 0
    with pytest.raises(WaitsForApproval):
        await grant(database, customer, "500", grant_id=grant_id)
    await decisions.decide(database, BOB, approval_id=await only(database), approve=True)
    assert int((await account(database, customer)).balance) == 500 * PICO


async def test_the_same_grant_again_is_one(database: Database) -> None:
    customer, grant_id = await make_customer(database), uuid7()
    for _ in range(2):
        await grant(database, customer, "60", grant_id=grant_id)
    await grant(database, customer, "40")
    assert int((await account(database, customer)).balance) == 100 * PICO
    with pytest.raises(Conflict):
        await grant(database, customer, "1000000", grant_id=grant_id)
    large = uuid7()
    for _ in range(2):
        with pytest.raises(WaitsForApproval):
            await grant(database, customer, "500", grant_id=large)
    with pytest.raises(Conflict):
        await grant(database, customer, "600", grant_id=large)
    await decisions.decide(database, BOB, approval_id=await only(database), approve=True)
    await grant(database, customer, "500", grant_id=large)
    assert int((await account(database, customer)).balance) == 600 * PICO
    adjustment_id = uuid7()
    for _ in range(2):
        await admin_adjustments.request_adjustment(
            database,
            BOB,
            tenant_id=customer.tenant_id,
            amount_usd="1",
            reason="r",
            adjustment_id=adjustment_id,
        )
    actions = await audit_actions(database)
    assert actions.count("credit.grant") == 3, "one row for each act, however often it was sent"
    assert actions.count("adjustment.book") == 1


async def test_a_repeated_request_is_one_request(database: Database) -> None:
    await price(database)
    customer, ids = await make_customer(database), [uuid7(), uuid7()]
    for _ in range(2):
        with pytest.raises(WaitsForApproval) as granting:
            await grant(database, customer, "500", grant_id=ids[0])
        with pytest.raises(WaitsForApproval) as pricing:
            await _price(database, customer)
        adjusted = await admin_adjustments.request_adjustment(
            database,
            ADA,
            tenant_id=customer.tenant_id,
            amount_usd="500",
            reason="r",
            adjustment_id=ids[1],
        )
    assert len(await waiting(database)) == 3
    actions = await audit_actions(database)
    for requested in ("credit.grant.request", "price.set.request", "adjustment.request"):
        assert actions.count(requested) == 1, requested
    first = {granting.value.details["approval_id"], pricing.value.details["approval_id"], str(adjusted.id)}
    assert first == {str(one.id) for one in await decisions.list_approvals(database, BOB)}
    await decisions.decide(
        database, BOB, approval_id=UUID(pricing.value.details["approval_id"]), approve=False
    )
    with pytest.raises(WaitsForApproval):
        await _price(database, customer)
    assert (await audit_actions(database)).count("price.set.request") == 2


Act = Callable[[Database, Customer], Awaitable[Any]]


async def _price(database: Database, customer: Customer) -> Any:
    return await admin_prices.set_price(database, ADA, model="river-7b", input="0", output="0")


async def _own_price(database: Database, customer: Customer) -> Any:
    return await admin_prices.set_price(
        database, ADA, model="river-7b", tenant_id=customer.tenant_id, input="0", output="0"
    )


async def _end_price(database: Database, customer: Customer) -> Any:
    return await admin_prices.end_price(database, ADA, model="river-7b", reason="r")


async def _discount(database: Database, customer: Customer) -> Any:
    return await admin_contracts.add_contract(
        database, ADA, tenant_id=customer.tenant_id, discount_bps=10_000, reason="friends"
    )


async def _credit_limit(database: Database, customer: Customer) -> Any:
    return await admin_accounts.set_credit_limit(
        database, ADA, tenant_id=customer.tenant_id, usd="1000000", reason="r"
    )


async def _no_credit_limit(database: Database, customer: Customer) -> Any:
    return await admin_accounts.set_credit_limit(
        database, ADA, tenant_id=customer.tenant_id, usd=None, reason="r"
    )


@pytest.mark.parametrize(
    ("act", "kind"),
    [
        (_price, "price.set"),
        (_own_price, "price.set"),
        (_end_price, "price.end"),
        (_discount, "contract.add"),
        (_credit_limit, "credit_limit.set"),
        (_no_credit_limit, "credit_limit.set"),
    ],
)
async def test_terms_without_a_bound_take_two_people(database: Database, act: Act, kind: str) -> None:
    await price(database)
    customer = await make_customer(database, mode="postpaid")
    await admin_accounts.set_credit_limit(database, ADMIN, tenant_id=customer.tenant_id, usd="10", reason="r")
    before = await _terms(database)
    with pytest.raises(WaitsForApproval):
        await act(database, customer)
    assert await waiting(database) == [kind]
    assert await _terms(database) == before
    with pytest.raises(Conflict):
        await decisions.decide(database, ADA, approval_id=await only(database), approve=True)
    await decisions.decide(database, BOB, approval_id=await only(database), approve=True)
    assert await _terms(database) != before


async def _terms(database: Database) -> list[Any]:
    async with database.system() as connection:
        found: list[Any] = []
        for sql in (
            "SELECT id, effective::text FROM price_versions ORDER BY id",
            "SELECT id, effective::text FROM contracts ORDER BY id",
            "SELECT tenant_id, credit_limit FROM billing_accounts ORDER BY 1",
        ):
            found += [tuple(row) for row in await connection.execute(text(sql))]
    return found


async def test_ending_a_contract_takes_two_people(database: Database) -> None:
    customer = await make_customer(database, mode="postpaid")
    contract = await admin_contracts.add_contract(
        database, ADMIN, tenant_id=customer.tenant_id, commit_monthly_usd="5000", reason="deal"
    )
    with pytest.raises(WaitsForApproval) as waits:
        await admin_contracts.end_contract(database, ADA, contract_id=contract.id, reason="friends")
    assert "of its committed spend remains due" in (waits.value.details or {})["warning"]
    assert (await _terms(database))[0][1].endswith(",)")
    await decisions.decide(database, BOB, approval_id=await only(database), approve=True)
    assert not (await _terms(database))[0][1].endswith(",)")


async def test_the_first_list_price_of_a_model_and_smaller_limits_need_one_person(database: Database) -> None:
    made = await admin_prices.set_price(database, ADA, model="new", input="1", output="2")
    assert made.status == "current"
    customer = await make_customer(database, mode="postpaid")
    for usd in ("1000", "1100", "50"):  # a first limit, a raise by 100, a cut
        await admin_accounts.set_credit_limit(
            database, ADA, tenant_id=customer.tenant_id, usd=usd, reason="r"
        )
    with pytest.raises(WaitsForApproval):
        await admin_accounts.set_credit_limit(
            database, ADA, tenant_id=customer.tenant_id, usd="50.01", reason="r"
        )
    assert await waiting(database) == ["credit_limit.set"]


async def test_a_new_postpaid_organisation_has_a_credit_limit_whose_raise_counts(database: Database) -> None:
    admin = Actor(kind="user", id=ADA.id, label=ADA.label, role="platform_admin")
    tenants = [
        await admin_tenants.create_tenant(database, admin, name="Acme", billing_mode="postpaid"),
        await admin_tenants.create_tenant(database, admin, name="Paid", billing_mode="prepaid"),
    ]
    views = [await admin_accounts.get_account(database, ADA, tenant_id=one.id) for one in tenants]
    assert [one.credit_limit_usd for one in views] == ["1000.00", None]
    assert views[0].available_usd == "1000.00"

    async def limit(usd: str | None) -> Any:
        return await admin_accounts.set_credit_limit(
            database, ADA, tenant_id=tenants[0].id, usd=usd, reason="r"
        )

    await limit("1100")
    for usd in ("1100.01", None):
        with pytest.raises(WaitsForApproval):
            await limit(usd)
    assert await waiting(database) == ["credit_limit.set"] * 2


async def test_another_tier_takes_two_people(database: Database) -> None:
    admin = Actor(kind="user", id=ADA.id, label=ADA.label, role="platform_admin")
    customer = await make_customer(database)

    async def move(tier: str) -> Any:
        return await admin_tenants.set_tier(
            database, admin, tenant_id=customer.tenant_id, tier=tier, reason="friends"
        )

    async def tier() -> str:
        return (await admin_tenants.get_tenant(database, admin, tenant_id=customer.tenant_id)).tier

    assert (await move("standard")).tier == "standard"  # the tier that it is in
    with pytest.raises(WaitsForApproval):
        await move("batch")
    assert (await waiting(database), await tier()) == (["tenant.set_tier"], "standard")
    with pytest.raises(Conflict, match="another person"):
        await decisions.decide(database, admin, approval_id=await only(database), approve=True)
    [request] = await decisions.list_approvals(database, BOB)
    assert (request.tenant_id, request.facts["previous_tier"]) == (customer.tenant_id, "standard")
    await admin_tenants.set_tier(
        database, ADMIN, tenant_id=customer.tenant_id, tier="priority", reason="meanwhile"
    )
    with pytest.raises(Conflict, match="in the tier priority now"):
        await decisions.decide(database, BOB, approval_id=request.id, approve=True)
    await decisions.decide(database, BOB, approval_id=request.id, approve=False)
    with pytest.raises(WaitsForApproval):
        await move("batch")
    await decisions.decide(database, BOB, approval_id=await only(database), approve=True)
    assert await tier() == "batch"


async def test_a_higher_tier_per_request_takes_two_people(database: Database) -> None:
    admin = Actor(kind="user", id=ADA.id, label=ADA.label, role="platform_admin")
    customer = await make_customer(database)

    async def allow(tier: str | None) -> Any:
        return await admin_tenants.set_highest_tier(
            database, admin, tenant_id=customer.tenant_id, tier=tier, reason="contract"
        )

    assert (await allow(None)).highest_tier is None  # as it is
    with pytest.raises(InvalidRequest, match="one of priority"):
        await allow("gold")
    with pytest.raises(WaitsForApproval):
        await allow("priority")
    with pytest.raises(Conflict, match="another person"):
        await decisions.decide(database, admin, approval_id=await only(database), approve=True)
    await decisions.decide(database, BOB, approval_id=await only(database), approve=True)
    after = await admin_tenants.get_tenant(database, admin, tenant_id=customer.tenant_id)
    assert (after.tier, after.highest_tier) == ("standard", "priority")
    assert "tenant.set_highest_tier" in await audit_actions(database)
    with pytest.raises(WaitsForApproval):
        await allow(None)
    await admin_tenants.set_highest_tier(
        database, ADMIN, tenant_id=customer.tenant_id, tier="batch", reason="meanwhile"
    )
    with pytest.raises(Conflict, match="highest tier is batch now, not priority"):
        await decisions.decide(database, BOB, approval_id=await only(database), approve=True)


async def test_ends_and_withdrawals_name_their_organisation_and_terms(database: Database) -> None:
    await price(database)
    customer = await make_customer(database, mode="postpaid")
    contract = await admin_contracts.add_contract(
        database, ADMIN, tenant_id=customer.tenant_id, discount_bps=1500, reason="deal"
    )
    later = datetime.now(UTC) + timedelta(days=30)
    scheduled = await admin_prices.set_price(
        database, ADMIN, model="river-7b", tenant_id=customer.tenant_id, input="3", output="4",
        reasoning="5", effective_from=later,
    )  # fmt: skip
    with pytest.raises(WaitsForApproval):
        await admin_contracts.end_contract(database, ADA, contract_id=contract.id, reason="r")
    with pytest.raises(WaitsForApproval):
        await admin_prices.withdraw_price(database, ADA, version=scheduled.id, reason="r")
    ended, withdrawn = await decisions.list_approvals(database, BOB)
    assert {ended.tenant_id, withdrawn.tenant_id} == {customer.tenant_id}
    assert ended.facts["discount_bps"] == 1500
    assert (withdrawn.facts["model"], withdrawn.facts["reasoning"]) == ("river-7b", "5.00")
    assert datetime.fromisoformat(withdrawn.facts["effective_from"]) == later
    for one in (ended, withdrawn):
        await decisions.decide(database, BOB, approval_id=one.id, approve=True)


async def test_an_act_that_would_fail_is_refused_and_not_stored(database: Database) -> None:
    customer = await make_customer(database, mode="postpaid")
    with pytest.raises(Conflict, match="postpaid"):
        await grant(database, customer, "1000")
    with pytest.raises(InvalidRequest):
        await admin_contracts.add_contract(
            database, ADA, tenant_id=customer.tenant_id, discount_bps=20_000, reason="r"
        )
    assert await waiting(database) == []


async def test_the_database_refuses_an_approval_by_the_same_person(database: Database) -> None:
    customer = await make_customer(database)
    with pytest.raises(WaitsForApproval):
        await grant(database, customer, "1000")
    with pytest.raises(IntegrityError, match="ck_approvals_two_people"):
        async with database.system() as connection:
            await connection.execute(
                text(
                    "UPDATE approvals SET decision = 'approved', decided_by = 'somebody else', "
                    "decided_by_id = requested_by_id, decided_at = now()"
                )
            )
