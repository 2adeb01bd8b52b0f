"""Money that one person may move alone: nothing beyond the limit, in one act or in many, by whichever door."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import date
from decimal import Decimal
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from admin import adjustments as admin_adjustments
from admin import billing as admin_billing
from admin import contracts as admin_contracts
from admin import decisions, shell_users
from admin import invoices as admin_invoices
from admin import users as admin_users
from admin.actor import Actor
from billing.ledger.approvals import WINDOW
from core.db import Database
from core.errors import Conflict, InvalidRequest, PermissionDenied, WaitsForApproval
from core.ids import uuid7
from tests.integration.billing.support import Customer, account, make_customer, price
from tests.support.tenancy import ADMIN, audit_actions

ADA = Actor(kind="user", id=str(uuid7()), label="ada@example.com", role="finance")
BOB = Actor(kind="user", id=str(uuid7()), label="bob@example.com", role="finance")
PICO = 10**12


async def person(database: Database, email: str, role: str = "finance") -> Actor:
    user = await admin_users.create_user(
        database, ADMIN, email=email, password="correct horse battery", role=role
    )
    return Actor(kind="user", id=str(user.id), label=email, role=role)  # type: ignore[arg-type]


def shell(name: str) -> Actor:
    return Actor(kind="cli", id=name, label=name, role="platform_admin")


async def grant(
    database: Database, customer: Customer, usd: str, actor: Actor = ADA, **facts: Any
) -> admin_billing.AccountView:
    return await admin_billing.grant_credit(
        database, actor, tenant_id=customer.tenant_id, amount_usd=usd, reason="friends", **facts
    )


async def waiting(database: Database) -> list[str]:
    return [one.kind for one in await decisions.list_approvals(database, BOB)]


async def only(database: Database) -> UUID:
    [one] = await decisions.list_approvals(database, BOB)
    return one.id


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
        database, ADA, tenant_id=customer.tenant_id, amount_usd="-11", reason="r", limit_usd=Decimal(100)
    )
    assert adjusted.status == "waiting"
    await grant(database, customer, "10")
    await grant(database, other, "100")  # another organisation, and another person, have a limit of their own
    await grant(database, customer, "100", BOB)


async def test_the_window_rolls(database: Database, pg_url: str) -> None:
    customer = await make_customer(database)
    await grant(database, customer, "100")
    with pytest.raises(WaitsForApproval):
        await grant(database, customer, "1")
    await as_owner(
        pg_url, f"UPDATE approvals SET requested_at = requested_at - interval '{WINDOW.days} days'"
    )
    await grant(database, customer, "1")


async def as_owner(pg_url: str, sql: str) -> None:
    connection = await asyncpg.connect(pg_url)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


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
    await decisions.decide(database, BOB, approval_id=await only(database), approve=True)
    await grant(database, customer, "500", grant_id=large)
    assert int((await account(database, customer)).balance) == 600 * PICO


Act = Callable[[Database, Customer], Awaitable[Any]]


async def _price(database: Database, customer: Customer) -> Any:
    return await admin_billing.set_price(database, ADA, model="river-7b", input="0", output="0")


async def _own_price(database: Database, customer: Customer) -> Any:
    return await admin_billing.set_price(
        database, ADA, model="river-7b", tenant_id=customer.tenant_id, input="0", output="0"
    )


async def _end_price(database: Database, customer: Customer) -> Any:
    return await admin_billing.end_price(database, ADA, model="river-7b", reason="r")


async def _discount(database: Database, customer: Customer) -> Any:
    return await admin_contracts.add_contract(
        database, ADA, tenant_id=customer.tenant_id, discount_bps=10_000, reason="friends"
    )


async def _credit_limit(database: Database, customer: Customer) -> Any:
    return await admin_billing.set_credit_limit(
        database, ADA, tenant_id=customer.tenant_id, usd="1000000", reason="r"
    )


async def _no_credit_limit(database: Database, customer: Customer) -> Any:
    return await admin_billing.set_credit_limit(
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
    await admin_billing.set_credit_limit(database, ADMIN, tenant_id=customer.tenant_id, usd="10", reason="r")
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
    made = await admin_billing.set_price(database, ADA, model="new", input="1", output="2")
    assert made.status == "current"
    customer = await make_customer(database, mode="postpaid")
    for usd in ("1000", "1100", "50"):  # a first limit, a raise by 100, a cut
        await admin_billing.set_credit_limit(database, ADA, tenant_id=customer.tenant_id, usd=usd, reason="r")
    with pytest.raises(WaitsForApproval):
        await admin_billing.set_credit_limit(
            database, ADA, tenant_id=customer.tenant_id, usd="50.01", reason="r"
        )
    assert await waiting(database) == ["credit_limit.set"]


async def test_an_act_that_would_fail_is_refused_and_not_stored(database: Database) -> None:
    customer = await make_customer(database, mode="postpaid")
    with pytest.raises(Conflict, match="postpaid"):
        await grant(database, customer, "1000")
    with pytest.raises(InvalidRequest):
        await admin_contracts.add_contract(
            database, ADA, tenant_id=customer.tenant_id, discount_bps=20_000, reason="r"
        )
    assert await waiting(database) == []


async def test_a_shell_user_is_the_person_it_is_mapped_to(database: Database) -> None:
    ada, bob = await person(database, "ada@example.com"), await person(database, "bob@example.com")
    customer = await make_customer(database)
    with pytest.raises(WaitsForApproval):
        await grant(database, customer, "1000", ada)
    approval_id = await only(database)
    with pytest.raises(Conflict, match="not mapped to a person"):
        await decisions.decide(database, shell("ops"), approval_id=approval_id, approve=True)
    await shell_users.claim(database, ada, name="ops")
    with pytest.raises(Conflict, match="another person"):
        await decisions.decide(database, shell("ops"), approval_id=approval_id, approve=True)
    with pytest.raises(PermissionDenied):
        await shell_users.claim(database, shell("ops2"), name="ops2")
    with pytest.raises(Conflict):
        await shell_users.claim(database, bob, name="ops")
    with pytest.raises(PermissionDenied):
        await shell_users.release(database, bob, name="ops")
    await shell_users.claim(database, bob, name="bobs")
    await decisions.decide(database, shell("bobs"), approval_id=approval_id, approve=True)
    assert int((await account(database, customer)).balance) == 1000 * PICO


async def test_what_an_unknown_shell_user_requests_waits_until_it_is_known(database: Database) -> None:
    ada, bob = await person(database, "ada@example.com"), await person(database, "bob@example.com")
    customer = await make_customer(database)
    with pytest.raises(WaitsForApproval):
        await grant(database, customer, "1000", shell("ops"))
    approval_id = await only(database)
    with pytest.raises(Conflict, match="not mapped"):
        await decisions.decide(database, bob, approval_id=approval_id, approve=True)
    await shell_users.claim(database, bob, name="ops")
    with pytest.raises(Conflict, match="another person"):
        await decisions.decide(database, bob, approval_id=approval_id, approve=True)
    await decisions.decide(database, ada, approval_id=approval_id, approve=True)


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


async def test_write_offs_come_under_the_limit(database: Database) -> None:
    customer = await make_customer(database, mode="postpaid")
    small, large = await _invoice(database, customer, 4_000), await _invoice(database, customer, 100_000)
    done = await admin_invoices.write_off_invoice(database, ADA, ref=str(small), reason="insolvent")
    assert done.status == "uncollectible"
    with pytest.raises(WaitsForApproval):
        await admin_invoices.write_off_invoice(database, ADA, ref=str(large), reason="insolvent")
    assert (await admin_invoices.show_invoice(database, BOB, ref=str(large))).invoice.status == "open"
    await decisions.decide(database, BOB, approval_id=await only(database), approve=True)
    assert (
        await admin_invoices.show_invoice(database, BOB, ref=str(large))
    ).invoice.status == "uncollectible"


async def _invoice(database: Database, customer: Customer, cents: int) -> UUID:
    """An open invoice with its booking."""
    invoice_id = uuid7()
    async with database.system() as connection:
        values = {
            "id": invoice_id,
            "tenant": customer.tenant_id,
            "exact": cents * PICO // 100,
            "cents": cents,
            "month": date(2026, 1 + cents // 50_000, 1),
            "number": f"PS-{cents}",
        }
        await connection.execute(
            text(
                "INSERT INTO invoices (id, tenant_id, month, kind, status, exact, total_cents, number, finalized_at) "
                "VALUES (:id, :tenant, CAST(:month AS date), 'postpaid', "
                "'open', :exact, :cents, :number, now())"
            ),
            values,
        )
        await connection.execute(
            text("SELECT penstock_book('invoice', :tenant, 'invoiced', 'receivable', :exact, :id)"), values
        )
    return invoice_id
