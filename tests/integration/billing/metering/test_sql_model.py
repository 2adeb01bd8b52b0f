"""The model of the SQL functions that the simulation uses, held to PostgreSQL by random sequences of calls.

Every sequence is one transaction on a database whose clock stands still until a rule moves it; it is rolled back at its
end. Each answer is compared at once, the tables at the end. `make test` plays SEQUENCES fixed ones, `make model-sql`
2,000 random ones.
"""

import asyncio
import itertools
import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from billing.metering.records import Outcome
from billing.metering.settle_calls import SettleRow
from core.db import Database, connect_system
from tests.integration.billing.support import MODEL, Customer, adapter_price, make_customer, price
from tests.simulation.sql_model import Price, Reaper, SqlModel, to_instant, to_us
from tests.support.virtual_time import VirtualClock

SEQUENCES = int(os.environ.get("SEQUENCES", "250"))
START = datetime(2026, 11, 27, 12, tzinfo=UTC)
_CLOCK = """
CREATE TABLE virtual.fixed (at timestamptz NOT NULL, started timestamptz NOT NULL);
INSERT INTO virtual.fixed VALUES ('{start}', '{start}');
GRANT SELECT, UPDATE ON virtual.fixed TO PUBLIC;
CREATE OR REPLACE FUNCTION virtual.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
    'SELECT at FROM virtual.fixed';
CREATE OR REPLACE FUNCTION virtual.now() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT at FROM virtual.fixed';
CREATE FUNCTION virtual.pg_postmaster_start_time() RETURNS timestamptz LANGUAGE sql STABLE AS
    'SELECT started FROM virtual.fixed';
"""
ADAPTER = "river-7b:own:a"
"""An adapter of the first customer with a price of its own. Another customer that names it pays the model's."""
_BOOK = "SELECT penstock_book($1, $2, $3, $4, $5, $6) AS is_new"
_HOLD = "SELECT * FROM penstock_hold('m', $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"
_SETTLE = "SELECT * FROM penstock_settle_labelled($1, '[]', $2, $3, $4, $5)"


@dataclass
class Rig:
    """A database whose clock stands, and a model in the same state."""

    runner: asyncio.Runner
    hot: "asyncpg.Connection[asyncpg.Record]"
    model: SqlModel
    customers: list[Customer]
    """Two prepaid, the second with a price of its own, one postpaid, and one whose account is locked."""
    known: list[UUID]
    """Requests of the customer whose account is locked, with open holds."""
    now: int

    def call(self, query: str, *args: Any) -> "list[asyncpg.Record]":
        rows: list[asyncpg.Record] = self.runner.run(self.hot.fetch(query, *args))
        return rows


rig: Rig
tenant = st.integers(0, 3)
free_tenant = st.integers(0, 2)
tokens = st.integers(0, 60)
pick = st.integers(0, 40)
labels = st.sampled_from(
    (None, None, "user=a", "user=b", "user=a\ntag_t=x", "tag_t=x\ntag_u=y", "user=\u00e9=c")
)
adapters = st.sampled_from((None, ADAPTER, ADAPTER, "river-7b:other:b"))
"""None, one with a price of its own, and one without."""
asks = st.tuples(tenant, tokens, st.sampled_from((0, 0, 5, 40, 90)), st.booleans(), labels, adapters)


class SqlModelMachine(RuleBasedStateMachine):
    """One sequence of calls on PostgreSQL and on the model."""

    def __init__(self) -> None:
        super().__init__()
        self.model = rig.model
        rig.now = to_us(START)
        self.transaction = rig.hot.transaction()
        rig.runner.run(self.transaction.start())
        self.ids = itertools.count(to_us(START) // 1000 << 80 | 7 << 76 | 2 << 62)
        self.known = list(rig.known)
        self.admitted = {one: START for one in self.known}
        self.labels: dict[UUID, str | None] = {}

    def new_id(self) -> UUID:
        return UUID(int=next(self.ids))

    def some(self, numbers: list[int]) -> list[UUID]:
        """Known requests, each once, and one that does not exist."""
        found = [self.known[number % len(self.known)] for number in numbers]
        return list(dict.fromkeys(found)) + ([self.new_id()] if numbers[0] > 35 else [])

    @initialize(
        amounts=st.tuples(st.integers(100, 4000), st.integers(1, 2500)),
        owed=st.integers(1, 2000),
        limit=st.none() | st.integers(0, 5000),
    )
    def begin(self, amounts: tuple[int, int], owed: int, limit: int | None) -> None:
        self.grant(0, amounts[0])
        self.grant(1, amounts[1])
        self.book("adjustment", "receivable", "revenue", owed)
        self.set_limits(2, None, limit)

    @rule(who=st.integers(0, 1), amount=st.integers(1, 1000))
    def grant(self, who: int, amount: int) -> None:
        source, tenant_id = self.new_id(), rig.customers[who].tenant_id
        for _ in range(2):
            (row,) = rig.call("SELECT penstock_grant($1, $2, $3, 'r', 't') AS b", source, tenant_id, amount)
            assert row["b"] == self.model.grant(source, tenant_id, amount)

    def book(self, kind: str, debit: str, credit: str, amount: int) -> None:
        """Book twice for the postpaid customer: the second time changes nothing."""
        source, tenant_id = self.new_id(), rig.customers[2].tenant_id
        for _ in range(2):
            (row,) = rig.call(_BOOK, kind, tenant_id, debit, credit, amount, source)
            assert row["is_new"] == self.model.book(kind, tenant_id, debit, credit, amount, source)

    @precondition(lambda self: self.model.accounts[rig.customers[2].tenant_id].owed > 0)
    @rule(share=st.integers(1, 3))
    def invoice(self, share: int) -> None:
        owed = self.model.accounts[rig.customers[2].tenant_id].owed
        self.book("invoice", "invoiced", "receivable", -(-owed // share))

    @precondition(lambda self: self.model.accounts[rig.customers[2].tenant_id].invoiced > 0)
    @rule(share=st.integers(1, 3), kind=st.sampled_from(("payment", "write_off", "credit_note")))
    def settle_invoice(self, share: int, kind: str) -> None:
        invoiced = self.model.accounts[rig.customers[2].tenant_id].invoiced
        debit = {"payment": "cash", "write_off": "uncollectible", "credit_note": "receivable"}[kind]
        self.book(kind, debit, "invoiced", -(-invoiced // share))

    @rule(who=free_tenant, budget=st.none() | st.integers(0, 2500), limit=st.none() | st.integers(0, 2500))
    def set_limits(self, who: int, budget: int | None, limit: int | None) -> None:
        tenant_id = rig.customers[who].tenant_id
        rig.call(
            "UPDATE billing_accounts SET budget = $2, credit_limit = $3 WHERE tenant_id = $1",
            tenant_id, budget, limit,
        )  # fmt: skip
        self.model._change(self.model.accounts[tenant_id], budget=budget, credit_limit=limit)

    @rule(who=free_tenant, scope=st.sampled_from(("project", "key")), amount=st.integers(0, 2500))
    def set_scope_budget(self, who: int, scope: str, amount: int) -> None:
        customer = rig.customers[who]
        args = (customer.tenant_id, scope, getattr(customer, f"{scope}_id"), amount)
        (row,) = rig.call("SELECT penstock_set_scope_budget($1, $2, $3, $4) AS done", *args)
        assert row["done"] == self.model.set_scope_budget(*args)

    @rule(
        who=free_tenant,
        label=st.sampled_from(("user", "user", "user=a", "user=b", "tag_t=x", "user=\u00e9=c")),
        amount=st.none() | st.integers(0, 2500),
        stops=st.booleans(),
    )
    def set_label_budget(self, who: int, label: str, amount: int | None, stops: bool) -> None:
        args = (rig.customers[who].tenant_id, label, amount, stops)
        (row,) = rig.call("SELECT penstock_set_label_budget($1, $2, $3, $4) AS done", *args)
        assert row["done"] == self.model.set_label_budget(*args)

    @rule(seconds=st.sampled_from((0.001, 1, 7, 40, 3600, 86_400, 260_000)))
    def wait(self, seconds: float) -> None:
        rig.now += round(seconds * 1e6)
        rig.call("UPDATE virtual.fixed SET at = $1", to_instant(rig.now))

    @rule()
    def restart_server(self) -> None:
        self.model.started_at = rig.now
        rig.call("UPDATE virtual.fixed SET started = at")

    @rule(
        asked=st.lists(asks, min_size=1, max_size=5),
        again=st.booleans(),
        model=st.sampled_from([MODEL] * 5 + ["x"]),
    )
    def hold(
        self, asked: list[tuple[int, int, int, bool, str | None, str | None]], again: bool, model: str
    ) -> None:
        ids = [self.new_id() for _ in asked]
        if again:
            ids[0] = self.known[-1]
        customers = [rig.customers[one[0]] for one in asked]
        batch: list[Any] = [
            ids,
            [one.tenant_id for one in customers],
            [one.project_id for one in customers],
            [one.key_id for one in customers],
            [model] * len(ids),
            ["standard"] * len(ids),
            [one[1] for one in asked],
            [one[2] for one in asked],
            [32] * len(ids),
            [one[3] for one in asked],
            all(one[0] != 3 for one in asked) and again,
            [one[4] for one in asked],
            [one[5] for one in asked],
        ]
        answers = {row["request_id"]: dict(row) for row in rig.call(_HOLD, *batch)}
        expected = {row["request_id"]: row for row in self.model.hold("m", *batch)}
        for row in answers.values():
            if row["price_id"] is None:  # the rates of no version have no meaning
                row.update({name: None for name in row if name.startswith(("price_", "list_"))})
        assert answers == expected
        for request, row in answers.items():
            if row["verdict"] == "granted":
                self.known.append(request)
                self.labels[request] = batch[11][ids.index(request)]
                self.admitted[request] = row["admitted_at"]

    @precondition(lambda self: self.known)
    @rule(numbers=st.lists(pick, min_size=1, max_size=3), more=st.integers(1, 50))
    def extend(self, numbers: list[int], more: int) -> None:
        chosen = self.some(numbers)
        query = "SELECT * FROM penstock_extend($1, $2)"
        if len({self.model.holds[one].tenant for one in chosen if one in self.model.holds}) < len(chosen):
            chosen = chosen[:1]  # the order inside of a call is not promised
        more_tokens = [more] * len(chosen)
        answers = {row["request_id"]: row["extended"] for row in rig.call(query, chosen, more_tokens)}
        expected = {row["request_id"]: row["extended"] for row in self.model.extend(chosen, more_tokens)}
        assert answers == expected

    @rule(numbers=st.lists(pick, min_size=1, max_size=4))
    def renew(self, numbers: list[int]) -> None:
        chosen = self.some(numbers)
        answers = {row["id"] for row in rig.call("SELECT penstock_renew($1) AS id", chosen)}
        assert answers == set(self.model.renew(chosen))

    @rule(numbers=st.lists(pick, min_size=1, max_size=3))
    def void(self, numbers: list[int]) -> None:
        chosen = self.some(numbers)
        (row,) = rig.call("SELECT penstock_void($1) AS busy", chosen)
        assert set(row["busy"]) == set(self.model.release(chosen, "voided"))

    @rule(ttl=st.sampled_from((5, 50)), gap=st.sampled_from((3, 4000)), limit=st.sampled_from((1, 100)))
    def reap(self, ttl: int, gap: int, limit: int) -> None:
        (row,) = rig.call(
            "SELECT penstock_reap($1, $2, $3) AS n", timedelta(seconds=ttl), timedelta(seconds=gap), limit
        )
        assert row["n"] == self.model.reap(ttl * 10**6, gap * 10**6, limit)

    @rule(
        ends=st.lists(
            st.tuples(
                pick, st.integers(-1, 60), st.integers(0, 90), st.integers(0, 9), st.sampled_from(Outcome)
            ),
            min_size=1,
            max_size=5,
        ),
        lasted_s=st.sampled_from((0, 3, 90, 90_000)),
        stranger=st.integers(0, 2),
        wrong=st.sampled_from((0,) * 8 + (77,)),
        strange=labels,
    )
    def settle(
        self,
        ends: list[tuple[int, int, int, int, Outcome]],
        lasted_s: int,
        stranger: int,
        wrong: int,
        strange: str | None,
    ) -> None:
        """Settle requests with the labels of their holds; those whose hold was lost have the labels `strange`."""
        batch = {}
        for number, prompt, output, part, outcome in ends:
            request = self.some([number])[-1]
            hold = self.model.holds.get(request)
            tenant_id = hold.tenant if hold is not None else rig.customers[stranger].tenant_id
            if tenant_id in self.model.locked:
                continue
            own = self.model.prices[hold.price] if hold else self.model.price(MODEL, "standard", tenant_id)
            assert own is not None
            listed = own if own.model == ADAPTER else self.model.price(MODEL, "standard", None)
            assert listed is not None
            customer = next(one for one in rig.customers if one.tenant_id == tenant_id)
            batch[request] = SettleRow(
                request_id=request, tenant_id=tenant_id, project_id=customer.project_id, key_id=customer.key_id,
                model=MODEL,
                tier="standard", region="r", replica_id="h/0", boot_id="b",
                admitted_at=self.admitted.get(request, START), outcome=outcome.value, free=outcome.free, attempts=1,
                stream=True, simulated=False, price_version=own.id + wrong, list_price_version=listed.id,
                input_tokens=prompt, cached_input_tokens=min(part, 5), output_tokens=output, reasoning_tokens=part,
                unbilled_input_tokens=0, unbilled_output_tokens=0, queue_us=0, ttft_us=0,
                duration_us=lasted_s * 10**6, gpu="H200",
            )  # fmt: skip
        rows = list(batch.values())
        named = [
            (one.request_id, one.tenant_id, *line.split("=", 1))
            for one in rows
            for line in (self.labels.get(one.request_id, strange) or "").split("\n")
            if line
        ]
        columns = [list(column) for column in zip(*named, strict=True)] or [[], [], [], []]
        answers = {row["request_id"]: row["result"] for row in rig.call(_SETTLE, rows, *columns)}
        expected = self.model.settle_labelled(rows, [], *columns)
        assert answers == {row["request_id"]: row["result"] for row in expected}

    def teardown(self) -> None:
        try:
            _same_tables(self.model)
        finally:
            rig.runner.run(self.transaction.rollback())
            self.model.roll_back()
            self.model.started_at = to_us(START)


def _same_tables(model: SqlModel) -> None:
    """Every row of PostgreSQL is one of the model's, and the other way round."""
    accounts = rig.call("SELECT * FROM billing_accounts")
    assert {one["tenant_id"]: _account(one) for one in accounts} == {
        key: (
            one.balance, one.owed, one.invoiced, one.held, one.open_holds, one.spent_month, one.has_label_budgets,
            one.end_user_budget, one.month,
        )
        for key, one in model.accounts.items()
    }  # fmt: skip
    budgets = rig.call("SELECT * FROM scope_budgets")
    assert {
        one["scope_id"]: (
            one["tenant_id"], one["scope"], one["amount"], one["held"], one["spent_month"],
            (one["month"].year, one["month"].month), one["label"], one["stops"],
        )
        for one in budgets
    } == {
        key: (one.tenant, one.scope, one.amount, one.held, one.spent_month, one.month, one.label, one.stops)
        for key, one in model.budgets.items()
    }  # fmt: skip
    holds = rig.call("SELECT *, CAST(state AS text) AS told FROM holds")
    assert {
        one["request_id"]: (
            one["tenant_id"],
            one["amount"],
            one["output_tokens"],
            one["told"],
            to_us(one["renewed_at"]),
            one["labels"],
        )
        for one in holds
    } == {
        key: (one.tenant, one.amount, one.output_tokens, one.state, one.renewed_at, one.labels)
        for key, one in model.holds.items()
    }
    usage = rig.call(
        "SELECT r.*, CAST(outcome AS text) AS told, d.tenant_id FROM usage_rows r JOIN usage_dims d ON d.id = r.dim_id"
    )
    assert {
        one["request_id"]: (
            one["tenant_id"], one["told"], to_us(one["ended_at"]), one["late"], one["input_tokens"],
            one["output_tokens"], one["cost"], one["discount"],
        )
        for one in usage
    } == {
        key: (one.tenant, one.outcome, one.ended_at, one.late, one.input, one.output, one.cost, one.discount)
        for key, one in model.usage.items()
    }  # fmt: skip
    transfers = rig.call(
        "SELECT t.*, d.code AS debit, c.code AS credit FROM ledger_transfers t "
        "JOIN ledger_accounts d ON d.id = t.debit_account JOIN ledger_accounts c ON c.id = t.credit_account"
    )
    assert {
        (one["source_id"], one["kind"]): (
            one["tenant_id"], one["debit"], one["credit"], one["amount"], to_us(one["effective_at"])
        )
        for one in transfers
    } == {
        key: (one.tenant, one.debit, one.credit, one.amount, one.effective_at)
        for key, one in model.transfers.items()
    }  # fmt: skip
    parked = rig.call("SELECT request_id, reason FROM settle_errors")
    assert {one["request_id"]: one["reason"] for one in parked} == model.parked
    state = [
        Reaper(to_us(one["seen_at"]), to_us(one["postmaster_start"]), to_us(one["paused_until"]))
        for one in rig.call("SELECT * FROM reaper_state")
    ]
    assert state == list(model.reaper.values())


def _account(row: "asyncpg.Record") -> tuple[Any, ...]:
    month = (row["month"].year, row["month"].month)
    amounts = (
        row[name]
        for name in (
            "balance", "owed", "invoiced", "held", "open_holds", "spent_month", "has_label_budgets", "end_user_budget",
        )
    )  # fmt: skip
    return (*amounts, month)


def picos(amounts: dict[str, int]) -> dict[str, str]:
    """Picodollars per token in dollars per million."""
    return {name: f"0.{amount:06d}" for name, amount in amounts.items()}


async def _prepare(pg_url: str, database: Database) -> tuple[Any, SqlModel, list[Customer]]:
    """Put the clock in; make customers and prices, in PostgreSQL and in the model."""
    await VirtualClock(pg_url).install()
    owner = await asyncpg.connect(pg_url)
    try:
        await owner.execute(_CLOCK.format(start=START.isoformat()))
    finally:
        await owner.close()
    customers = [await make_customer(database, mode="postpaid" if n == 2 else "prepaid") for n in range(4)]
    model = SqlModel(lambda: rig.now)
    model.started_at = to_us(START)
    rates = {
        None: {"input": 3, "cached_input": 1, "output": 7, "reasoning": 11},
        customers[1].tenant_id: {"input": 2, "cached_input": 2, "output": 9, "reasoning": 5},
    }
    for tenant_id, amounts in rates.items():
        version = await price(database, tenant_id=tenant_id, **picos(amounts))
        model.prices[version] = Price(version, MODEL, "standard", tenant_id, **amounts)
    amounts = {"input": 5, "cached_input": 4, "output": 13, "reasoning": 6}
    version = await adapter_price(database, customers[0], ADAPTER, **picos(amounts))
    model.prices[version] = Price(version, ADAPTER, "standard", customers[0].tenant_id, **amounts)
    model.adapters[ADAPTER] = (customers[0].tenant_id, MODEL)
    return await connect_system(pg_url), model, customers


async def _lock(pg_url: str, customer: Customer) -> "asyncpg.Connection[asyncpg.Record]":
    connection = await asyncpg.connect(pg_url)
    await connection.execute("BEGIN")
    await connection.fetch(
        "SELECT 1 FROM billing_accounts WHERE tenant_id = $1 FOR UPDATE", customer.tenant_id
    )
    return connection


@pytest.mark.promise(1, 3, 4)
@pytest.mark.timeout(1800)
def test_the_model_of_the_sql_functions_answers_as_postgresql_does(pg_url: str) -> None:
    global rig
    with asyncio.Runner() as runner:
        database = Database(pg_url)
        hot, model, customers = runner.run(_prepare(pg_url, database))
        rig = Rig(runner, hot, model, customers, [], to_us(START))
        locked = customers[3]
        for customer in customers:
            mode = "postpaid" if customer is customers[2] else "prepaid"
            model.open_account(customer.tenant_id, mode)
        source = UUID(int=1)
        rig.call("SELECT penstock_grant($1, $2, 500, 'r', 't')", source, locked.tenant_id)
        model.grant(source, locked.tenant_id, 500)
        rig.known[:] = [UUID(int=(to_us(START) // 1000 - 1) << 80 | 7 << 76 | 2 << 62 | n) for n in range(2)]
        one = [
            rig.known,
            *([value] * 2 for value in (locked.tenant_id, locked.project_id, locked.key_id, MODEL)),
        ]
        batch: list[Any] = [
            *one,
            ["standard"] * 2,
            [5, 5],
            [10, 10],
            [32, 32],
            [False, False],
            True,
            ["user=a", None],
            [None, None],
        ]
        assert [row["verdict"] for row in rig.call(_HOLD, *batch)] == ["granted", "granted"]
        model.hold("m", *batch)
        model.undo.clear()
        model.locked.add(locked.tenant_id)
        lock = runner.run(_lock(pg_url, locked))
        try:
            run_state_machine_as_test(
                SqlModelMachine,
                settings=settings(
                    max_examples=SEQUENCES,
                    stateful_step_count=12,
                    deadline=None,
                    database=None,
                    derandomize=SEQUENCES <= 250,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            runner.run(lock.close())
            runner.run(hot.close())
            runner.run(database.close())
