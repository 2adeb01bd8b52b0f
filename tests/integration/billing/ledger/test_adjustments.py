"""Manual adjustments: booked or waiting for approval, exact for prepaid and postpaid customers."""

from typing import Any
from uuid import UUID

import pytest

from admin import adjustments as admin_adjustments
from admin import decisions
from admin.actor import Actor
from billing.ledger import approvals
from billing.ledger.approvals import Person
from billing.ledger.verification import verify
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound, PermissionDenied
from core.ids import uuid7
from tests.integration.billing.support import Customer, account, make_customer, transfers

ADA = Actor(kind="user", id=str(uuid7()), label="ada@example.com", role="finance")
BOB = Actor(kind="token", id=str(uuid7()), label="bob@example.com", role="platform_admin")


async def ask(database: Database, customer: Customer, usd: str, **facts: Any) -> Any:
    return await admin_adjustments.request_adjustment(
        database,
        facts.pop("actor", ADA),
        **{
            "tenant_id": customer.tenant_id,
            "amount_usd": usd,
            "reason": "wrong price",
            **facts,
        },
    )


async def kinds(database: Database, customer: Customer) -> list[tuple[str, int]]:
    return [(row.kind, int(row.amount)) for row in await transfers(database, customer)]


async def sound(database: Database) -> None:
    async with database.system() as connection:
        assert (await verify(connection)).problems == []


async def test_small_ones_are_booked_at_once_and_once(database: Database) -> None:
    customer = await make_customer(database, "10")
    adjustment_id = uuid7()
    for _ in range(2):
        made = await ask(database, customer, "100", adjustment_id=adjustment_id, corrects="2026-10")
    assert (made.status, made.id, made.corrects) == ("booked", adjustment_id, "2026-10")
    assert int((await account(database, customer)).balance) == 110 * 10**12
    with pytest.raises(Conflict, match="another act"):
        await ask(database, customer, "99", adjustment_id=adjustment_id)
    [row] = await admin_adjustments.list_adjustments(database, ADA, tenant_id=customer.tenant_id)
    assert (row.amount_usd, row.corrects, row.created_by, row.approved_by) == (
        "100.00",
        "2026-10",
        ADA.label,
        None,
    )
    await sound(database)


async def test_a_charge_takes_what_is_free_and_the_rest_is_uncollectible(database: Database) -> None:
    customer = await make_customer(database, "10")
    await ask(database, customer, "-12.50")
    assert int((await account(database, customer)).balance) == 0
    assert await kinds(database, customer) == [
        ("grant", 10 * 10**12),
        ("adjustment", 10 * 10**12),
        ("uncollectible", 25 * 10**11),
    ]
    await sound(database)


async def test_a_postpaid_customer_owes_less_or_more(database: Database) -> None:
    customer = await make_customer(database, mode="postpaid")
    await ask(database, customer, "3")
    assert int((await account(database, customer)).owed) == -3 * 10**12
    await ask(database, customer, "-5")
    assert int((await account(database, customer)).owed) == 2 * 10**12
    await sound(database)


async def test_above_the_limit_another_person_must_agree(database: Database) -> None:
    customer = await make_customer(database)
    for usd in ("100.000000000001", "-100.01"):
        waiting = await ask(database, customer, usd)
        assert waiting.status == "waiting"
    assert await kinds(database, customer) == []
    first, second = await admin_adjustments.list_requests(database, BOB)
    with pytest.raises(Conflict, match="another person"):
        await admin_adjustments.decide_adjustment(database, ADA, approval_id=first.id, approve=True)
    # The same person with a token is still the same person.
    same = Actor(kind="token", id=ADA.id, label="ada.other@example.com", role="finance")
    with pytest.raises(Conflict, match="another person"):
        await admin_adjustments.decide_adjustment(database, same, approval_id=first.id, approve=True)
    booked = await admin_adjustments.decide_adjustment(database, BOB, approval_id=first.id, approve=True)
    assert (booked.status, booked.decided_by, booked.requested_by) == ("booked", BOB.label, ADA.label)
    assert await kinds(database, customer) == [("adjustment", 100 * 10**12 + 1)]
    for approve in (True, False):
        with pytest.raises(Conflict, match="already"):
            await admin_adjustments.decide_adjustment(database, BOB, approval_id=first.id, approve=approve)
    taken_back = await admin_adjustments.decide_adjustment(
        database, ADA, approval_id=second.id, approve=False, reason="typing error"
    )
    assert taken_back.status == "rejected"
    assert await admin_adjustments.list_requests(database, BOB) == []
    [row] = await admin_adjustments.list_adjustments(database, BOB)
    assert (row.created_by, row.approved_by) == (ADA.label, BOB.label)
    await sound(database)


async def test_a_decision_about_something_else_changes_nothing(database: Database) -> None:
    async with database.system() as connection:
        other = await approvals.request(connection, kind="rerate", facts={}, by=Person(str(uuid7()), "eve"))
    with pytest.raises(Conflict, match="rerate"):
        await admin_adjustments.decide_adjustment(database, ADA, approval_id=other, approve=True)
    [still] = await decisions.list_approvals(database, ADA)
    assert (still.id, still.kind) == (other, "rerate")
    with pytest.raises(NotFound):
        await admin_adjustments.decide_adjustment(database, ADA, approval_id=UUID(int=5), approve=True)


@pytest.mark.parametrize(
    ("usd", "facts", "param"),
    [
        ("0", {}, "amount_usd"),
        ("-0.00", {}, "amount_usd"),
        ("ten", {}, "amount_usd"),
        ("--1", {}, "amount_usd"),
        ("0.0000000000001", {}, "amount_usd"),
        ("1e30", {}, "amount_usd"),
        ("1", {"corrects": "2026-13"}, "corrects"),
        ("1", {"corrects": "2026-1"}, "corrects"),
        ("1", {"corrects": "20261-1"}, "corrects"),
        ("1", {"reason": " "}, "reason"),
    ],
)
async def test_nonsense_is_refused(database: Database, usd: str, facts: dict[str, Any], param: str) -> None:
    customer = await make_customer(database)
    with pytest.raises(InvalidRequest) as refused:
        await ask(database, customer, usd, **facts)
    assert refused.value.param == param
    assert await kinds(database, customer) == []


async def test_customers_read_theirs_and_change_nothing(database: Database) -> None:
    mine, other = await make_customer(database), await make_customer(database, name="Other")
    await ask(database, mine, "1")
    await ask(database, other, "2")
    owner = Actor(kind="user", id="u", label="u", role="tenant_owner", tenant_id=mine.tenant_id)
    assert [row.amount_usd for row in await admin_adjustments.list_adjustments(database, owner)] == ["1.00"]
    for act in (
        ask(database, mine, "1", actor=owner),
        admin_adjustments.list_requests(database, owner),
        decisions.list_approvals(database, owner),
        admin_adjustments.list_adjustments(database, owner, tenant_id=other.tenant_id),
        admin_adjustments.decide_adjustment(database, owner, approval_id=uuid7(), approve=True),
    ):
        with pytest.raises(PermissionDenied):
            await act
