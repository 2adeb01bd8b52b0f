"""Settlement on a real PostgreSQL: exactly once, also with retries and outages."""

import asyncio
from datetime import UTC, datetime
from uuid import UUID

import asyncpg
import msgspec
import pytest
from sqlalchemy import text

from billing.ledger import credits
from billing.ledger.accounts import set_credit_limit
from billing.ledger.transfers import book
from billing.metering.holds import HoldManager
from billing.metering.records import HoldGranted, Outcome, Unbilled
from billing.metering.settle_calls import SettleConnection, settle_row
from billing.metering.settlement import PendingSettlement, Settlement
from core.db import Database
from core.errors import InsufficientCredit
from core.ids import uuid7
from core.money import usd_to_pico
from core.tokens import TokenUsage
from tests.integration.billing.metering.settling import COST, USAGE, all_sound, never, settle
from tests.integration.billing.support import (
    Customer,
    account,
    make_customer,
    price,
    terminate_hot_connections,
    transfers,
    usage_rows,
)
from tests.support.waiting import until


@pytest.mark.promise(1)
async def test_what_a_dead_process_left_of_a_settled_request_adds_nothing(
    pg_url: str, database: Database, manager: HoldManager
) -> None:
    """A process is killed after it settled a request; of its spool only a checkpoint is readable."""
    await price(database)
    customer = await make_customer(database, "1")
    granted = await manager.place(customer.hold())
    boot = customer.ended(granted, USAGE).open.boot_id
    left = Unbilled("cancelled_tail", "replica-1", boot, output=7, tail_input=400, tail_output=3072)
    choices = Unbilled("choices", "replica-1", boot, input=10)
    connection = SettleConnection(pg_url)
    try:
        await connection.settle([customer.ended(granted, USAGE, unbilled=(choices,))])
        await connection.settle(
            [
                customer.ended(
                    granted, TokenUsage(input=10), outcome=Outcome.INTERRUPTED, unbilled=(left, left)
                )
            ]
        )
    finally:
        await connection.close()
    async with database.system() as read:
        rows = (await read.execute(text("SELECT cause, part, input_tokens FROM usage_unbilled"))).all()
    assert [tuple(row) for row in rows] == [("choices", 0, 10)]
    assert (await usage_rows(database, customer))[granted.request_id].outcome == "completed"


async def test_usage_has_the_class_of_gpu_that_it_ran_on(
    database: Database, manager: HoldManager, hot: asyncpg.Connection
) -> None:
    await price(database)
    customer = await make_customer(database, "1")
    classes = {}
    for gpu in ("B300", "", "H200", "B300"):
        granted = await manager.place(customer.hold())
        record = msgspec.structs.replace(customer.ended(granted, USAGE), open=customer.open(granted, gpu=gpu))
        assert list((await settle(hot, record)).values()) == ["settled"]
        assert list((await settle(hot, record)).values()) == ["duplicate"]
        other = msgspec.structs.replace(record, open=customer.open(granted, gpu="A100"))
        assert list((await settle(hot, other)).values()) == ["duplicate"]
        classes[granted.request_id] = gpu
    rows = await usage_rows(database, customer)
    assert {request: row.gpu for request, row in rows.items()} == classes


async def test_records_of_a_process_of_before_the_class_of_gpu_wait_and_are_not_parked(
    database: Database, manager: HoldManager, hot: asyncpg.Connection
) -> None:
    await price(database)
    customer = await make_customer(database, "1")
    record = settle_row(customer.ended(await manager.place(customer.hold()), USAGE))
    with pytest.raises(asyncpg.DatatypeMismatchError) as refused:
        await hot.fetch("SELECT * FROM penstock_settle($1)", [tuple(record)[:-1]])
    assert refused.value.sqlstate == "42804"  # class 42 is no error of the record, which would park it


@pytest.mark.promise(1, 4)
async def test_a_settled_request_is_charged_once(
    database: Database, manager: HoldManager, hot: asyncpg.Connection
) -> None:
    version = await price(database)
    customer = await make_customer(database, "1")
    granted = await manager.place(customer.hold())
    record = customer.ended(
        granted,
        USAGE,
        attempts=2,
        queue_us=7,
        ttft_us=8,
        duration_us=9_000,
        extra_unbilled=TokenUsage(input=10, output=3),
    )
    assert record.cost == COST
    assert await settle(hot, record) == {granted.request_id: "settled"}
    assert await settle(hot, record) == {granted.request_id: "duplicate"}
    row = (await usage_rows(database, customer))[granted.request_id]
    assert (row.outcome, row.cost, row.list_cost, row.price_version) == ("completed", COST, COST, version)
    assert (row.input_tokens, row.cached_input_tokens, row.output_tokens, row.reasoning_tokens) == (
        10,
        4,
        50,
        20,
    )
    assert (row.unbilled_input_tokens, row.unbilled_output_tokens, row.attempts) == (10, 3, 2)
    assert (row.queue_us, row.ttft_us, row.duration_us) == (7, 8, 9_000)
    assert row.admitted_at == granted.admitted_at
    assert (row.ended_at - row.admitted_at).total_seconds() <= 0.009
    after = await account(database, customer)
    assert (after.balance, after.held, after.open_holds) == (usd_to_pico("1") - COST, 0, 0)
    assert after.spent_month == COST
    assert [(t.kind, t.amount) for t in await transfers(database, customer)] == [
        ("grant", usd_to_pico("1")),
        ("usage", COST),
    ]
    await all_sound(database)


@pytest.mark.promise(7)
@pytest.mark.parametrize("outcome", [Outcome.ENGINE_FAILED, Outcome.ZERO_OUTPUT])
async def test_failures_record_tokens_and_charge_nothing(
    database: Database, manager: HoldManager, hot: asyncpg.Connection, outcome: Outcome
) -> None:
    await price(database)
    customer = await make_customer(database, "1")
    granted = await manager.place(customer.hold())
    await settle(hot, customer.ended(granted, USAGE, outcome))
    row = (await usage_rows(database, customer))[granted.request_id]
    assert (row.cost, row.list_cost, row.output_tokens) == (0, 0, 50)
    assert len(await transfers(database, customer)) == 1
    assert (await account(database, customer)).balance == usd_to_pico("1")
    await all_sound(database)


@pytest.mark.promise(16)
async def test_a_contract_price_keeps_the_list_cost(
    database: Database, manager: HoldManager, hot: asyncpg.Connection
) -> None:
    await price(database)
    customer = await make_customer(database, "1")
    await price(
        database, tenant_id=customer.tenant_id, input="0.5", cached_input="0.1", output="5", reasoning="5"
    )
    granted = await manager.place(customer.hold())
    # The price changes while the request runs: the pinned version holds.
    await price(database, tenant_id=customer.tenant_id, output="999")
    await settle(hot, customer.ended(granted, TokenUsage(input=10, output=10)))
    row = (await usage_rows(database, customer))[granted.request_id]
    assert (row.cost, row.list_cost) == (5_000_000 + 50_000_000, 10_000_000 + 100_000_000)


@pytest.mark.promise(3)
async def test_a_hold_too_small_charges_what_is_available(
    database: Database, manager: HoldManager, hot: asyncpg.Connection
) -> None:
    await price(database, reasoning="10")
    customer = await make_customer(database, "0.003")
    small = await manager.place(customer.hold(input_tokens=0, output_tokens=100))
    other = await manager.place(customer.hold(input_tokens=0, output_tokens=100))
    # 400 tokens cost 0.004: the hold covers 0.001, 0.001 is free, and 0.001 is held by the other request.
    await settle(hot, customer.ended(small, TokenUsage(output=400)))
    kinds = {t.kind: t.amount for t in await transfers(database, customer)}
    assert kinds["usage"] == usd_to_pico("0.002")
    assert kinds["uncollectible"] == usd_to_pico("0.002")
    after = await account(database, customer)
    assert (after.balance, after.held) == (usd_to_pico("0.001"), other.amount)
    await all_sound(database)


@pytest.mark.promise(3)
@pytest.mark.parametrize("bought", ["0", "1"])
async def test_a_lot_that_expires_between_admission_and_settlement_pays_what_was_held(
    database: Database, manager: HoldManager, hot: asyncpg.Connection, bought: str
) -> None:
    await price(database, reasoning="10")
    customer = await make_customer(database, bought)
    async with database.system() as connection:
        lot = uuid7()
        await credits.add_lot(
            connection, lot_id=lot, tenant_id=customer.tenant_id, amount=usd_to_pico("0.01"), kind="promotional",
            reason="welcome", created_by="test", expires_at=datetime(2100, 1, 1, tzinfo=UTC),
        )  # fmt: skip
    granted = await manager.place(customer.hold(input_tokens=0, output_tokens=400))
    async with database.engine.begin() as connection:  # as the owner: no role may change an expiry
        await connection.execute(
            text("UPDATE credit_grants SET expires_at = clock_timestamp() WHERE id = :id"), {"id": lot}
        )
    await credits.expire_all(database)
    # Held is 0.004: without other credit, that much of the lot outlives it.
    left = usd_to_pico(bought) or granted.amount
    assert (await account(database, customer)).balance == left
    await settle(hot, customer.ended(granted, TokenUsage(output=300)))
    await credits.expire_all(database)
    kinds = [t.kind for t in await transfers(database, customer)]
    assert "uncollectible" not in kinds
    after = await account(database, customer)
    assert (after.balance, after.held) == (left - usd_to_pico("0.003") if int(bought) else 0, 0)
    await all_sound(database)


async def test_postpaid_usage_is_owed_and_the_credit_limit_holds(
    database: Database, manager: HoldManager, hot: asyncpg.Connection
) -> None:
    await price(database)
    customer = await make_customer(database, mode="postpaid")
    granted = await manager.place(customer.hold())
    await settle(hot, customer.ended(granted, TokenUsage(output=5000)))
    after = await account(database, customer)
    assert (after.balance, after.owed, after.held) == (0, 5000 * 10_000_000, 0)
    assert [t.kind for t in await transfers(database, customer)] == ["usage"]
    async with database.system() as connection:
        await set_credit_limit(connection, customer.tenant_id, "0.0505")
    await manager.place(customer.hold(input_tokens=0, output_tokens=25))
    with pytest.raises(InsufficientCredit):
        await manager.place(customer.hold(input_tokens=0, output_tokens=26))
    await all_sound(database)


async def test_unpaid_invoices_use_up_the_credit_limit(database: Database, manager: HoldManager) -> None:
    """Net 30 or not: what is invoiced stays lent until it is paid, so the exposure never exceeds the limit."""
    await price(database)
    customer = await make_customer(database, mode="postpaid")
    token = 20_000_000  # picodollars that an output token may cost

    async def book_all(*transfers: tuple[str, str, str, int]) -> None:
        async with database.system() as connection:
            for kind, debit, credit, amount in transfers:
                await book(connection, kind, customer.tenant_id, debit, credit, amount * token, uuid7())

    async with database.system() as connection:
        await set_credit_limit(connection, customer.tenant_id, "0.002")  # 100 tokens
    await book_all(("adjustment", "receivable", "revenue", 60))
    await book_all(("invoice", "invoiced", "receivable", 60), ("adjustment", "receivable", "revenue", 30))
    with pytest.raises(InsufficientCredit):
        await manager.place(customer.hold(input_tokens=0, output_tokens=11))
    last = await manager.place(customer.hold(input_tokens=0, output_tokens=10))
    assert (await account(database, customer)).invoiced == 60 * token
    with pytest.raises(InsufficientCredit):
        await manager.place(customer.hold(input_tokens=0, output_tokens=1))
    manager.void(last.request_id)
    await book_all(("payment", "cash", "invoiced", 50))
    await manager.place(customer.hold(input_tokens=0, output_tokens=60))
    assert (await account(database, customer)).invoiced == 10 * token
    await all_sound(database)


@pytest.mark.promise(1)
async def test_concurrent_and_repeated_batches_settle_each_request_once(
    database: Database, manager: HoldManager, pg_url: str
) -> None:
    await price(database)
    customers: list[Customer] = [await make_customer(database, "10", name=f"c{i}") for i in range(3)]
    holds: list[tuple[Customer, HoldGranted]] = []
    for customer in customers:
        granted = await asyncio.gather(*(manager.place(customer.hold()) for _ in range(40)))
        holds += [(customer, one) for one in granted]
    records = [customer.ended(granted, USAGE) for customer, granted in holds]
    workers = [Settlement(pg_url, window_s=0.01) for _ in range(3)]
    done: list[UUID] = []
    for index, worker in enumerate(workers):
        await worker.start()
        for record in records[index:] + records[:index]:
            worker.submit(
                PendingSettlement(record.open.request_id, record, lambda _: None, done.append, never)
            )
    await until(lambda: len(done) == 3 * len(records))
    for worker in workers:
        await worker.close()
    for customer in customers:
        assert len(await usage_rows(database, customer)) == 40
        assert (await account(database, customer)).balance == usd_to_pico("10") - 40 * COST
    await all_sound(database)


@pytest.mark.promise(1)
async def test_settlement_survives_cut_connections(
    database: Database, manager: HoldManager, pg_url: str
) -> None:
    await price(database)
    customer = await make_customer(database, "10")
    granted = await asyncio.gather(*(manager.place(customer.hold()) for _ in range(60)))
    settlement = Settlement(pg_url, batch_rows=5, window_s=0.0)
    done: list[UUID] = []
    await settlement.start()
    for one in granted:
        settlement.submit(
            PendingSettlement(one.request_id, customer.ended(one, USAGE), lambda _: None, done.append, never)
        )
    while (before := len(done)) < 60:
        await terminate_hot_connections(pg_url)
        await until(lambda before=before: len(done) > before, what="another batch is settled")
    await settlement.close()
    assert len(done) == len(set(done)) == 60
    assert len(await usage_rows(database, customer)) == 60
    assert (await account(database, customer)).balance == usd_to_pico("10") - 60 * COST
    await all_sound(database)


@pytest.mark.promise(2)
async def test_neither_role_can_change_the_ledger(database: Database, manager: HoldManager) -> None:
    customer = await make_customer(database, "1")
    for statement in (
        "UPDATE ledger_transfers SET amount = 1",
        "DELETE FROM ledger_transfers",
        "UPDATE ledger_seals SET hash = ''",
        "UPDATE price_versions SET output = 0",
        "DELETE FROM usage_rows",
        "UPDATE usage_rows SET cost = 0",
        "UPDATE usage_dims SET tenant_id = project_id",
        "DELETE FROM usage_late",
    ):
        for session in (database.system(), database.tenant(customer.tenant_id)):
            with pytest.raises(Exception, match="permission denied"):
                async with session as connection:
                    await connection.execute(text(statement))


@pytest.mark.promise(23)
async def test_a_tenant_sees_only_its_own_money(database: Database, manager: HoldManager) -> None:
    mine = await make_customer(database, "1", name="Mine")
    await make_customer(database, "2", name="Other")
    async with database.read(mine.tenant_id) as connection:
        for table in ("billing_accounts", "ledger_transfers", "credit_grants"):
            rows = await connection.execute(text(f"SELECT DISTINCT tenant_id FROM {table}"))
            assert rows.scalars().all() == [mine.tenant_id]


async def test_neither_settling_nor_renewing_nor_voiding_scans_all_open_holds(
    database: Database, manager: HoldManager, hot: asyncpg.Connection
) -> None:
    await price(database)
    customer = await make_customer(database, "1000")
    granted = [
        one
        for _ in range(20)
        for one in await asyncio.gather(*(manager.place(customer.hold()) for _ in range(100)))
    ]
    async with database.system() as connection:
        scans = text(
            "SELECT sum(idx_scan) FROM pg_stat_user_indexes WHERE indexrelname LIKE 'holds%tenant_id_idx'"
        )
        before = (await connection.execute(scans)).scalar_one()
    for start in range(0, 1200, 20):
        await settle(hot, *(customer.ended(one, USAGE) for one in granted[start : start + 20]))
    ids = [one.request_id for one in granted[1200:]]
    await hot.fetch("SELECT * FROM penstock_extend($1, $2)", ids[:20], [1] * 20)
    await hot.fetch("SELECT penstock_renew($1)", ids)
    await hot.fetch("SELECT penstock_void($1)", ids)
    await hot.fetch("SELECT pg_stat_force_next_flush()")
    async with database.system() as connection:
        assert (await connection.execute(scans)).scalar_one() == before
        states = await connection.execute(
            text("SELECT CAST(state AS text), count(*) FROM holds GROUP BY state")
        )
        assert {state: count for state, count in states} == {"settled": 1200, "voided": 800}
    await all_sound(database)
