"""Factories of invoicing tests: a platform with a clock, usage at any instant, stored invoices."""

import json
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import text

from billing.ledger.months import final_at, month_of, next_month
from billing.ledger.transfers import seal
from billing.ledger.verification import verify
from core.db import Database
from core.ids import uuid7
from tests.integration.billing.support import MODEL, Customer, settle_json
from tests.support.virtual_time import VirtualClock


class Platform:
    """A database and its clock; begins in the middle of a month."""

    def __init__(self, database: Database, clock: VirtualClock, start: datetime) -> None:
        self.database = database
        self.clock = clock
        self.month = month_of(start)

    @classmethod
    async def begin(cls, pg_url: str) -> "Platform":
        """Set the clock to noon of the tenth day of next month."""
        clock = VirtualClock(pg_url)
        await clock.install()
        first = next_month(month_of(datetime.now(UTC)))
        start = datetime(first.year, first.month, 10, 12, tzinfo=UTC)
        await clock.set(start)
        return cls(Database(pg_url), clock, start)

    async def use(
        self,
        customer: Customer,
        *,
        input: int = 0,
        cached: int = 0,
        output: int = 0,
        reasoning: int = 0,
        model: str = MODEL,
        outcome: str = "completed",
        ended_at: datetime | None = None,
        request_id: UUID | None = None,
    ) -> UUID:
        """Settle one request that ended at `ended_at` (None = now) through the product's own function."""
        record = await self.record(
            customer,
            input=input,
            cached=cached,
            output=output,
            reasoning=reasoning,
            model=model,
            outcome=outcome,
            ended_at=ended_at,
            request_id=request_id,
        )
        assert await self.settle([record]) in (["settled"], ["duplicate"])
        return UUID(record["request_id"])

    async def settle(self, records: list[dict[str, Any]]) -> list[str]:
        """Settle records in one batch; returns the result of each."""
        async with self.database.system() as connection:
            result = await connection.execute(text(settle_json(":batch")), {"batch": json.dumps(records)})
            return list(result.scalars())

    async def record(
        self,
        customer: Customer,
        *,
        input: int = 0,
        cached: int = 0,
        output: int = 0,
        reasoning: int = 0,
        model: str = MODEL,
        outcome: str = "completed",
        ended_at: datetime | None = None,
        request_id: UUID | None = None,
    ) -> dict[str, Any]:
        """The record of a request that ended at `ended_at` (None = now), at the prices in force now."""
        now = await self.clock.now()
        end = ended_at or now
        request = request_id or uuid7(int(end.timestamp() * 1000) - 1000)
        async with self.database.system() as connection:
            version = (
                await connection.execute(
                    text("SELECT p.id FROM penstock_price(:model, 'standard', :tenant, :at) p"),
                    {"model": model, "tenant": customer.tenant_id, "at": now},
                )
            ).scalar_one()
            listed = (
                await connection.execute(
                    text("SELECT p.id FROM penstock_price(:model, 'standard', NULL, :at) p"),
                    {"model": model, "at": now},
                )
            ).scalar_one()
        return {
            "request_id": str(request),
            "tenant_id": str(customer.tenant_id),
            "project_id": str(customer.project_id),
            "key_id": str(customer.key_id),
            "model": model,
            "tier": "standard",
            "region": "test",
            "replica_id": "r",
            "boot_id": "b",
            "admitted_at": (end - timedelta(seconds=1)).isoformat(),
            "outcome": outcome,
            "free": outcome in ("engine_failed", "zero_output"),
            "attempts": 1,
            "stream": True,
            "simulated": False,
            "price_version": version,
            "list_price_version": listed,
            "input_tokens": input,
            "cached_input_tokens": cached,
            "output_tokens": output,
            "reasoning_tokens": reasoning,
            "unbilled_input_tokens": 0,
            "unbilled_output_tokens": 0,
            "queue_us": 0,
            "ttft_us": 1,
            "duration_us": 1_000_000,
        }

    async def end_month(self) -> date:
        """Move the clock past the current month's late window; returns that month."""
        month = month_of(await self.clock.now())
        await self.clock.set(final_at(month) + timedelta(hours=1))
        return month

    async def rows(self, sql: str, **values: Any) -> list[Any]:
        """The rows of a query."""
        async with self.database.system() as connection:
            return list(await connection.execute(text(sql), values))

    async def one(self, sql: str, **values: Any) -> Any:
        """The only value of a query."""
        ((value,),) = await self.rows(sql, **values)
        return value

    async def invoice(self, customer: Customer, month: date) -> Any:
        """The customer's invoice of a month."""
        (row,) = await self.rows(
            "SELECT * FROM invoices WHERE tenant_id = :tenant AND month = :month",
            tenant=customer.tenant_id,
            month=month,
        )
        return row

    async def lines(self, customer: Customer, month: date) -> list[Any]:
        """The lines of the customer's invoice of a month."""
        return await self.rows(
            "SELECT l.* FROM invoice_lines l JOIN invoices i ON i.id = l.invoice_id "
            "WHERE i.tenant_id = :tenant AND i.month = :month ORDER BY l.position",
            tenant=customer.tenant_id,
            month=month,
        )

    async def balance(self, customer: Customer, code: str) -> int:
        """Debits less credits of one of the customer's ledger accounts."""
        rows = await self.rows(
            "SELECT debit - credit AS net FROM ledger_balances WHERE tenant_id = :tenant AND code = :code",
            tenant=customer.tenant_id,
            code=code,
        )
        return int(rows[0].net) if rows else 0

    async def is_sound(self) -> None:
        """Assert that the ledger verifies."""
        async with self.database.system() as connection:
            await seal(connection)
            books = await verify(connection)
        assert books.problems == []

    async def commit_to(
        self, customer: Customer, amount: int, *, since: datetime, days: int = 14, automatic: bool = False
    ) -> UUID:
        """A contract with committed monthly spend; `automatic`: invoices are paid by the saved card."""
        contract = uuid7()
        await self.rows(
            "INSERT INTO contracts (id, tenant_id, effective, commit_monthly, payment_days, automatic_payment, reason, "
            "created_by) VALUES (:id, :tenant, tstzrange(:since, NULL), :amount, :days, :automatic, 'test', 'test') "
            "RETURNING id",
            id=contract,
            tenant=customer.tenant_id,
            since=since,
            amount=amount,
            days=days,
            automatic=automatic,
        )
        return contract
