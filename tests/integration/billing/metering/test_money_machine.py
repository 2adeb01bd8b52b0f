"""Random histories of holds, settlement and ledger, compared with a small model."""

import asyncio
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import text

from billing.ledger.transfers import seal
from billing.ledger.verification import verify
from billing.metering.records import OpenRecord, Outcome, PriceVersion, UsageRecord
from billing.metering.settle_calls import settle_row
from core.db import Database, connect_system
from core.ids import uuid7
from core.tokens import TokenUsage
from tests.integration.billing.support import MODEL, Customer, make_customer, price

IN, OUT = 3, 7
"""Picodollars per input and output token."""
NONE = UUID(int=0)


@dataclass
class Account:
    """The model of a tenant: balance, holds by request, money spent and uncollectible."""

    customer: Customer
    balance: int = 0
    budget: int | None = None
    spent: int = 0
    lost: int = 0
    holds: dict[UUID, int] = field(default_factory=dict)
    admitted: dict[UUID, Any] = field(default_factory=dict)
    settled: dict[UUID, UsageRecord] = field(default_factory=dict)

    @property
    def held(self) -> int:
        return sum(self.holds.values())

    def available(self) -> int:
        left = self.balance if self.budget is None else min(self.balance, self.budget - self.spent)
        return left - self.held

    def settle(self, request_id: UUID, cost: int) -> None:
        hold = self.holds.pop(request_id, 0)
        # Money that other requests hold is not available.
        paid = cost if cost <= hold else min(cost, max(self.balance - self.held, 0))
        self.balance -= paid
        self.spent += cost
        self.lost += cost - paid


class MoneyMachine(RuleBasedStateMachine):
    """Random histories of two tenants on one PostgreSQL."""

    pg_url = ""
    runner: asyncio.Runner
    database: Database
    hot: "asyncpg.Connection[asyncpg.Record]"
    version: PriceVersion

    def __init__(self) -> None:
        super().__init__()
        self.accounts = [Account(self.do(make_customer(self.database))) for _ in range(2)]

    def do(self, coroutine: Any) -> Any:
        return self.runner.run(coroutine)

    def call(self, query: str, *args: Any) -> "list[asyncpg.Record]":
        rows: list[asyncpg.Record] = self.do(self.hot.fetch(query, *args))
        return rows

    tenant = st.integers(0, 1)
    tokens = st.integers(0, 60)

    @initialize(
        first=st.integers(0, 3000),
        second=st.integers(200, 1500),
        asked=st.lists(st.tuples(tenant, tokens, tokens), min_size=4, max_size=8),
    )
    def begin(self, first: int, second: int, asked: list[tuple[int, int, int]]) -> None:
        self.grant(0, first + 1)
        self.grant(1, second)
        self.hold(asked)

    @rule(who=tenant, amount=st.integers(1, 1000))
    def grant(self, who: int, amount: int) -> None:
        account = self.accounts[who]
        grant_id = uuid7()
        for _ in range(2):
            self.call(
                "SELECT penstock_grant($1, $2, $3, 'r', 't')", grant_id, account.customer.tenant_id, amount
            )
        account.balance += amount

    @rule(who=tenant, budget=st.none() | st.integers(0, 1500))
    def set_budget(self, who: int, budget: int | None) -> None:
        account = self.accounts[who]
        account.budget = budget
        self.call(
            "UPDATE billing_accounts SET budget = $1 WHERE tenant_id = $2", budget, account.customer.tenant_id
        )

    @rule(asked=st.lists(st.tuples(tenant, tokens, tokens), min_size=1, max_size=5))
    def hold(self, asked: list[tuple[int, int, int]]) -> None:
        rows = [(uuid7(), self.accounts[who].customer, who, i, o) for who, i, o in asked]
        answers = self.call(
            "SELECT * FROM penstock_hold('m', $1, $2, $3, $4, $5, $6, $7, $8, $9)",
            [row[0] for row in rows],
            [row[1].tenant_id for row in rows],
            [row[1].project_id for row in rows],
            [row[1].key_id for row in rows],
            [MODEL] * len(rows),
            ["standard"] * len(rows),
            [row[3] for row in rows],
            [row[4] for row in rows],
            [32] * len(rows),
        )
        verdicts = {answer["request_id"]: answer for answer in answers}
        for request_id, _, who, i, o in rows:
            account, answer = self.accounts[who], verdicts[request_id]
            available = account.available()
            expected = o or min(32, max(1, available // 4 // OUT))
            needed = i * IN + expected * OUT
            assert answer["needed"] == needed
            assert (answer["verdict"] == "granted") == (needed <= available)
            if answer["verdict"] == "granted":
                assert answer["output_tokens"] == expected
                account.holds[request_id] = needed
                account.admitted[request_id] = answer["admitted_at"]

    @precondition(lambda self: any(account.admitted for account in self.accounts))
    @rule(who=tenant, pick=st.integers(0, 9), more=st.integers(1, 50))
    def extend(self, who: int, pick: int, more: int) -> None:
        account = self.accounts[who]
        known = list(account.admitted)
        if not known:
            return
        request_id = known[pick % len(known)]
        expected = request_id in account.holds and more * OUT <= account.available()
        (answer,) = self.call("SELECT * FROM penstock_extend($1, $2)", [request_id], [more])
        assert answer["extended"] == expected
        if expected:
            account.holds[request_id] += more * OUT

    @precondition(lambda self: any(account.admitted for account in self.accounts))
    @rule(who=tenant, pick=st.integers(0, 9), how=st.sampled_from(["void", "reap"]))
    def release(self, who: int, pick: int, how: str) -> None:
        account = self.accounts[who]
        known = list(account.admitted)
        if not known:
            return
        request_id = known[pick % len(known)]
        if how == "void":
            self.call("SELECT penstock_void($1)", [request_id])
        else:
            self.call(
                "UPDATE holds SET renewed_at = renewed_at - interval '1 day' WHERE request_id = $1",
                request_id,
            )
            self.call("SELECT penstock_reap('1 hour', '1 year', 100)")
        account.holds.pop(request_id, None)

    @precondition(lambda self: any(account.admitted for account in self.accounts))
    @rule(
        ends=st.lists(
            st.tuples(tenant, st.integers(0, 9), tokens, st.integers(0, 90), st.sampled_from(Outcome)),
            min_size=1,
            max_size=5,
        ),
        again=st.booleans(),
    )
    def settle(self, ends: list[tuple[int, int, int, int, Outcome]], again: bool) -> None:
        batch: dict[UUID, tuple[Account, UsageRecord]] = {}
        for who, pick, i, o, outcome in ends:
            account = self.accounts[who]
            known = [one for one in account.admitted if again or one not in account.settled]
            if known:
                request_id = known[pick % len(known)]
                record = UsageRecord(self.opened(account, request_id), outcome, TokenUsage(input=i, output=o))
                batch.setdefault(request_id, (account, record))
        rows = [settle_row(record) for _, record in batch.values()]
        results = {
            row["request_id"]: row["result"] for row in self.call("SELECT * FROM penstock_settle($1)", rows)
        }
        fresh = {key: one for key, one in batch.items() if key not in one[0].settled}
        assert results == {key: "settled" if key in fresh else "duplicate" for key in batch}
        # In one batch the holds that suffice are settled first, the others in the order of their ids.
        for short in (False, True):
            for key in sorted(fresh):
                account, record = fresh[key]
                if (record.cost > account.holds.get(key, 0)) == short and key not in account.settled:
                    account.settle(key, record.cost)
                    account.settled[key] = record

    def opened(self, account: Account, request_id: UUID) -> OpenRecord:
        customer = account.customer
        return OpenRecord(
            request_id=request_id,
            tenant_id=customer.tenant_id,
            project_id=customer.project_id,
            key_id=customer.key_id,
            model=MODEL,
            tier="standard",
            region="r",
            price=self.version,
            list_price=self.version,
            admitted_at=account.admitted[request_id],
            replica_id="h/0",
            boot_id="b",
            simulated=False,
            stream=False,
        )

    @rule()
    def seal(self) -> None:
        async def sealed() -> None:
            async with self.database.system() as connection:
                await seal(connection)

        self.do(sealed())

    @invariant()
    def accounts_agree(self) -> None:
        for account in self.accounts:
            (row,) = self.call(
                "SELECT * FROM billing_accounts WHERE tenant_id = $1", account.customer.tenant_id
            )
            assert row["balance"] == account.balance >= 0
            assert (row["held"], row["open_holds"]) == (account.held, len(account.holds))
            assert row["spent_month"] == account.spent
            (lost,) = self.call(
                "SELECT coalesce(sum(amount), 0) AS amount FROM ledger_transfers "
                "WHERE tenant_id = $1 AND kind = 'uncollectible'",
                account.customer.tenant_id,
            )
            assert lost["amount"] == account.lost

    def teardown(self) -> None:
        async def check() -> None:
            async with self.database.system() as connection:
                books = await verify(connection)
            assert books.problems == []

        self.do(check())


@pytest.mark.promise(1, 2, 3, 4)
def test_money_machine(pg_url: str) -> None:
    with asyncio.Runner() as runner:
        database = Database(pg_url)

        async def prepare() -> None:
            per_mtok = {"input": IN, "cached_input": IN, "output": OUT, "reasoning": OUT}
            version = await price(database, **{name: f"0.{value:06d}" for name, value in per_mtok.items()})
            MoneyMachine.version = PriceVersion(version, IN, IN, OUT, OUT)
            MoneyMachine.hot = await connect_system(pg_url)

        MoneyMachine.runner, MoneyMachine.database = runner, database
        runner.run(prepare())
        try:
            run_state_machine_as_test(
                MoneyMachine,
                settings=settings(
                    max_examples=40,
                    stateful_step_count=30,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            runner.run(MoneyMachine.hot.close())
            runner.run(database.close())


@pytest.mark.promise(2)
async def test_a_changed_transfer_breaks_the_chain(database: Database, pg_url: str) -> None:
    for number in range(3):
        await make_customer(database, f"{number + 1}", name=f"c{number}")
    async with database.system() as connection:
        assert await seal(connection) == 3
        assert await seal(connection) == 0
        assert (await verify(connection)).sealed == 3
    owner = await asyncpg.connect(pg_url)
    try:
        await owner.execute("ALTER TABLE ledger_transfers DISABLE TRIGGER ALL")
        await owner.execute("UPDATE ledger_transfers SET amount = amount + 1 WHERE id = 2")
    finally:
        await owner.close()
    async with database.system() as connection:
        problems = (await verify(connection)).problems
    assert any("3 transfers from 1 does not verify" in problem for problem in problems)
    assert any("balance differs" in problem for problem in problems)


@pytest.mark.promise(2)
async def test_two_sealers_make_one_chain(database: Database) -> None:
    for number in range(5):
        await make_customer(database, "1", name=f"c{number}")

    async def one() -> None:
        async with database.system() as connection:
            await seal(connection)

    await asyncio.gather(*(one() for _ in range(4)))
    await one()
    async with database.system() as connection:
        books = await verify(connection)
        assert (books.sealed, books.unsealed, books.problems) == (5, 0, [])
        sequence = await connection.execute(text("SELECT array_agg(seq ORDER BY seq) FROM ledger_seals"))
        links = sequence.scalar_one()
        assert links == list(range(1, len(links) + 1))
