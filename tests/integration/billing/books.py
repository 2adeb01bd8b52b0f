"""Shared base of the ledger's state machines: one event loop, one PostgreSQL, holds and settlements."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from uuid import UUID

import asyncpg
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.metering.records import OpenRecord, Outcome, PriceVersion, UsageRecord
from billing.metering.settle_calls import settle_row
from core.db import Database, connect_system
from core.ids import uuid7
from core.tokens import TokenUsage
from tests.integration.billing.support import MODEL, Customer, price

T = TypeVar("T")


class BooksMachine(RuleBasedStateMachine):
    """A machine with a database; one output token costs one picodollar, input is free."""

    pg_url = ""
    runner: asyncio.Runner
    database: Database
    hot: "asyncpg.Connection[asyncpg.Record]"
    version: PriceVersion

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end."""
        return self.runner.run(coroutine)

    def act(self, work: Callable[[AsyncConnection], Coroutine[Any, Any, T]]) -> T:
        """One transaction of the platform."""

        async def whole() -> T:
            async with self.database.system() as connection:
                return await work(connection)

        return self.wait(whole())

    def call(self, query: str, *args: Any) -> "list[asyncpg.Record]":
        """One command of the hot path."""
        return self.wait(self.hot.fetch(query, *args))

    def hold(self, customer: Customer, tokens: int) -> tuple[UUID, Any] | None:
        """Reserve `tokens` picodollars; the request's id and admission, None when refused."""
        request_id = uuid7()
        (answer,) = self.call(
            "SELECT * FROM penstock_hold('m', $1, $2, $3, $4, $5, $6, $7, $8, $9)",
            [request_id],
            [customer.tenant_id],
            [customer.project_id],
            [customer.key_id],
            [MODEL],
            ["standard"],
            [0],
            [tokens],
            [1],
        )
        return (request_id, answer["admitted_at"]) if answer["verdict"] == "granted" else None

    def settle(self, customer: Customer, request: tuple[UUID, Any], tokens: int) -> None:
        """End a request that has used `tokens`, twice: the second time changes nothing."""
        opened = OpenRecord(
            request_id=request[0],
            tenant_id=customer.tenant_id,
            project_id=customer.project_id,
            key_id=customer.key_id,
            model=MODEL,
            tier="standard",
            region="r",
            price=self.version,
            list_price=self.version,
            admitted_at=request[1],
            replica_id="h/0",
            boot_id="b",
            simulated=False,
            stream=False,
        )
        record = UsageRecord(opened, Outcome.COMPLETED, TokenUsage(input=0, output=tokens))
        for expected in ("settled", "duplicate"):
            (row,) = self.call("SELECT * FROM penstock_settle($1)", [settle_row(record)])
            assert row["result"] == expected


def play(machine: type[BooksMachine], pg_url: str, *, examples: int, steps: int) -> None:
    """Run the state machine `machine` with Hypothesis on an empty database."""
    with asyncio.Runner() as runner:
        machine.pg_url, machine.runner = pg_url, runner
        machine.database = Database(pg_url)
        machine.hot = runner.run(connect_system(pg_url))
        rates = {"input": "0", "cached_input": "0", "output": "0.000001", "reasoning": "0.000001"}
        machine.version = PriceVersion(runner.run(price(machine.database, **rates)), 0, 0, 1, 1)
        try:
            run_state_machine_as_test(
                machine,
                settings=settings(
                    max_examples=examples,
                    stateful_step_count=steps,
                    deadline=None,
                    phases=[Phase.explicit, Phase.generate],  # shrinking with PostgreSQL takes minutes
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            runner.run(machine.hot.close())
            runner.run(machine.database.close())
