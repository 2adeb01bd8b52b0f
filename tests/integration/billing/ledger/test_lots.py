"""Credit lots one by one: what each kind books, when it ends, what a refund may take."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text

from admin import credits as admin_credits
from admin.actor import system_actor
from billing.ledger import credits
from billing.ledger.accounts import GrantView
from billing.ledger.credits import LotKind
from billing.ledger.transfers import book
from billing.ledger.verification import verify
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound
from core.ids import uuid7
from core.settings import Settings
from jobs import work
from tests.integration.billing.support import Customer, account, make_customer, price, transfers

ADMIN = system_actor("test")
FAR = datetime(2100, 1, 1, tzinfo=UTC)


async def give(database: Database, customer: Customer, kind: LotKind, amount: int, **facts: Any) -> UUID:
    lot_id: UUID = facts.pop("lot_id", None) or uuid7()
    async with database.system() as connection:
        await credits.add_lot(
            connection,
            lot_id=lot_id,
            tenant_id=customer.tenant_id,
            amount=amount,
            kind=kind,
            reason="r",
            created_by="t",
            **facts,
        )
    return lot_id


async def ends_now(database: Database, lot_id: UUID) -> None:
    async with database.engine.begin() as owner:
        await owner.execute(
            text("UPDATE credit_grants SET expires_at = clock_timestamp() WHERE id = :id"), {"id": lot_id}
        )


async def codes(database: Database, customer: Customer) -> list[tuple[str, str, str, int]]:
    async with database.system() as connection:
        names = {
            row.id: row.code for row in await connection.execute(text("SELECT id, code FROM ledger_accounts"))
        }
    return [
        (row.kind, names[row.debit_account], names[row.credit_account], int(row.amount))
        for row in await transfers(database, customer)
    ]


@pytest.mark.parametrize(
    ("kind", "given", "ended"),
    [
        ("purchased", ("purchase", "cash", "credit", 7), ("expiry", "credit", "breakage", 7)),
        ("promotional", ("grant", "promotions", "credit", 7), ("expiry", "credit", "promotions", 7)),
        ("sla", ("sla_credit", "sla_credits", "credit", 7), ("expiry", "credit", "sla_credits", 7)),
        ("adjustment", ("adjustment", "revenue", "credit", 7), ("expiry", "credit", "breakage", 7)),
    ],
)
async def test_each_kind_is_booked_where_it_belongs(
    database: Database, kind: LotKind, given: tuple[Any, ...], ended: tuple[Any, ...]
) -> None:
    customer = await make_customer(database)
    lot_id = await give(database, customer, kind, 7, expires_at=FAR)
    await ends_now(database, lot_id)
    for _ in range(2):
        await work.expire_credits(database, Settings.model_construct())
    assert await codes(database, customer) == [given, ended]
    async with database.system() as connection:
        assert (await verify(connection)).problems == []
        [lot] = await credits.list_lots(connection, customer.tenant_id, spent=True)
        assert await credits.list_lots(connection, customer.tenant_id) == []
    assert (lot.remaining_usd, lot.expired_usd) == ("0.00", "0.000000000007")


async def test_what_open_requests_hold_expires_later(database: Database) -> None:
    customer = await make_customer(database)
    lot_id = await give(database, customer, "promotional", 100, expires_at=FAR)
    async with database.system() as connection:
        await connection.execute(
            text("UPDATE billing_accounts SET held = 30, open_holds = 1 WHERE tenant_id = :id"),
            {"id": customer.tenant_id},
        )
    await ends_now(database, lot_id)
    await credits.expire_all(database)
    assert int((await account(database, customer)).balance) == 30
    async with database.system() as connection:
        await connection.execute(
            text("UPDATE billing_accounts SET held = 0, open_holds = 0 WHERE tenant_id = :id"),
            {"id": customer.tenant_id},
        )
    assert await credits.expire_all(database) == 1
    assert int((await account(database, customer)).balance) == 0
    assert [row[3] for row in await codes(database, customer)] == [100, 70, 30]


async def test_use_before_the_expiry_is_taken_first_and_use_after_it_is_not(database: Database) -> None:
    customer = await make_customer(database)
    gift = await give(database, customer, "promotional", 100, expires_at=FAR)
    bought = await give(database, customer, "purchased", 100)

    async def use(amount: int) -> None:
        async with database.system() as connection:
            await book(connection, "commit", customer.tenant_id, "credit", "revenue", amount, uuid7())

    await use(30)
    await ends_now(database, gift)
    await use(50)
    await credits.expire_all(database)
    async with database.system() as connection:
        lots = {lot.id: lot for lot in await credits.list_lots(connection, customer.tenant_id, spent=True)}
    assert (lots[gift].used_usd, lots[gift].expired_usd) == ("0.00000000003", "0.00000000007")
    assert (lots[bought].used_usd, lots[bought].remaining_usd) == ("0.00000000005", "0.00000000005")


async def test_a_refund_takes_what_remains_and_says_so_once(database: Database) -> None:
    customer = await make_customer(database)
    lot_id, source_id = await give(database, customer, "purchased", 50), uuid7()
    async with database.system() as connection:
        await book(connection, "commit", customer.tenant_id, "credit", "revenue", 20, uuid7())
        for _ in range(2):
            taken = await credits.debit_lot(
                connection, lot_id=lot_id, amount=None, kind="refund", source_id=source_id
            )
            assert taken == 30
    other = await give(database, customer, "purchased", 50)
    async with database.system() as connection:
        with pytest.raises(Conflict, match="another credit"):
            await credits.debit_lot(connection, lot_id=other, amount=1, kind="refund", source_id=source_id)
    async with database.system() as connection:
        with pytest.raises(NotFound):
            await credits.debit_lot(connection, lot_id=uuid7(), amount=1, kind="refund", source_id=uuid7())
    assert (await codes(database, customer))[2] == ("refund", "credit", "cash", 30)


async def test_the_same_id_with_other_facts_is_refused(database: Database) -> None:
    customer, other = await make_customer(database), await make_customer(database, name="Other")
    lot_id = await give(database, customer, "purchased", 50)
    for who, kind, amount in ((customer, "purchased", 51), (customer, "sla", 50), (other, "purchased", 50)):
        with pytest.raises(Conflict, match="other facts"):
            await give(database, who, kind, amount, lot_id=lot_id)  # type: ignore[arg-type]
    assert len(await codes(database, customer)) == 1
    assert await codes(database, other) == []


@pytest.mark.parametrize(
    ("facts", "param"),
    [
        ({"amount": 0}, "amount_usd"),
        ({"amount": -1}, "amount_usd"),
        ({"kind": "gift"}, "kind"),
        ({"priority": -1}, "priority"),
        ({"priority": 40000}, "priority"),
        ({"expires_at": datetime(2020, 1, 1, tzinfo=UTC)}, "expires_at"),
        ({"expires_at": datetime(2100, 1, 1)}, "expires_at"),
    ],
)
async def test_a_lot_that_makes_no_sense_is_refused(
    database: Database, facts: dict[str, Any], param: str
) -> None:
    customer = await make_customer(database)
    with pytest.raises(InvalidRequest) as refused:
        await give(database, customer, facts.pop("kind", "purchased"), facts.pop("amount", 1), **facts)
    assert refused.value.param == param
    assert await codes(database, customer) == []


async def test_a_postpaid_customer_gets_service_credit_off_what_it_owes(database: Database) -> None:
    customer, credit_id = await make_customer(database, mode="postpaid"), uuid7()
    with pytest.raises(Conflict, match="prepaid"):
        await give(database, customer, "purchased", 5)
    for expected in (True, False):
        async with database.system() as connection:
            made = await credits.give_sla_credit(
                connection,
                credit_id=credit_id,
                tenant_id=customer.tenant_id,
                amount=9,
                reason="slow",
                created_by="t",
            )
            assert made == expected
    assert await codes(database, customer) == [("sla_credit", "sla_credits", "receivable", 9)]


async def test_finance_gives_lots_and_sees_them(database: Database) -> None:
    await price(database)
    customer = await make_customer(database)
    when = FAR - timedelta(days=1)
    given = await admin_credits.grant_credit(
        database,
        ADMIN,
        tenant_id=customer.tenant_id,
        amount_usd="5",
        reason="wire transfer",
        kind="purchased",
        expires_at=when,
        priority=3,
    )
    assert given.balance_usd == "5.00"
    [lot] = await admin_credits.list_lots(database, ADMIN, tenant_id=customer.tenant_id)
    assert (lot.kind, lot.priority, lot.expires_at) == ("purchased", 3, when.isoformat())
    grants: list[GrantView] = await admin_credits.list_grants(database, ADMIN, tenant_id=customer.tenant_id)
    assert [grant.id for grant in grants] == [lot.id]
    for facts in ({"kind": "sla"}, {"kind": "adjustment"}, {"currency": "EUR"}):
        with pytest.raises(InvalidRequest):
            await admin_credits.grant_credit(
                database,
                ADMIN,
                tenant_id=customer.tenant_id,
                amount_usd="1",
                reason="r",
                **facts,  # type: ignore[arg-type]
            )


async def test_what_was_drawn_is_never_changed(database: Database) -> None:
    customer = await make_customer(database)
    lot_id = await give(database, customer, "purchased", 5)
    async with database.system() as connection:
        await credits.debit_lot(connection, lot_id=lot_id, amount=1, kind="refund", source_id=uuid7())
    for statement in ("UPDATE grant_draws SET amount = 0", "DELETE FROM grant_draws"):
        with pytest.raises(Exception, match="append-only"):
            async with database.engine.begin() as owner:
                await owner.execute(text(statement))


@pytest.mark.parametrize("job", [work.expire_credits, work.allocate_credits])
async def test_one_tenant_whose_credit_fails_does_not_stop_the_others(
    database: Database, job: work.Work
) -> None:
    customers = sorted([await make_customer(database) for _ in range(3)], key=lambda one: one.tenant_id)
    for customer in customers:
        lot_id = await give(database, customer, "promotional", 100, expires_at=FAR)
        async with database.system() as connection:
            await book(connection, "commit", customer.tenant_id, "credit", "revenue", 30, uuid7())
        if job is work.expire_credits:
            await ends_now(database, lot_id)
    async with database.engine.begin() as owner:
        for statement in (
            "CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'the books of this tenant are broken'; END $$",
            "CREATE TRIGGER broken BEFORE INSERT ON grant_draws FOR EACH ROW "
            f"WHEN (NEW.tenant_id = '{customers[0].tenant_id}') EXECUTE FUNCTION broken()",
        ):
            await owner.execute(text(statement))
    with pytest.raises(ExceptionGroup) as failed:
        await job(database, Settings())
    assert "this tenant" in str(failed.value.exceptions[0])
    async with database.read() as connection:
        drawn = await connection.execute(
            text("SELECT tenant_id, sum(amount) FROM grant_draws GROUP BY tenant_id")
        )
        expected = 100 if job is work.expire_credits else 30
        assert {row[0]: int(row[1]) for row in drawn} == {one.tenant_id: expected for one in customers[1:]}
