"""Small factories of billing tests: a tenant with an account, holds and usage records."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg
from sqlalchemy import text

from billing.ledger.accounts import grant_credit, open_account
from billing.metering.records import HoldGranted, HoldRequest, OpenRecord, Outcome, UsageRecord
from billing.pricing.prices import Rates, set_price
from core.db import Database
from core.ids import uuid7
from core.tokens import TokenUsage

MODEL = "river-7b"


def settle_json(argument: str = "$1") -> str:
    """A query that settles the records of a JSON array."""
    return (
        "SELECT result, request_id FROM penstock_settle(ARRAY("
        "SELECT jsonb_populate_record(CAST(NULL AS settle_record), one) "
        f"FROM jsonb_array_elements(CAST({argument} AS jsonb)) AS given (one)))"
    )


@dataclass
class Customer:
    """An organisation with one project and one key."""

    tenant_id: UUID = field(default_factory=uuid7)
    project_id: UUID = field(default_factory=uuid7)
    key_id: UUID = field(default_factory=uuid7)
    name: str = "Acme"

    def hold(
        self,
        *,
        input_tokens: int = 10,
        output_tokens: int = 100,
        model: str = MODEL,
        whole: bool = False,
        adapter: str = "",
    ) -> HoldRequest:
        return HoldRequest(
            request_id=uuid7(),
            tenant_id=self.tenant_id,
            project_id=self.project_id,
            key_id=self.key_id,
            model=model,
            tier="standard",
            max_input_tokens=input_tokens,
            max_output_tokens=output_tokens,
            whole=whole,
            adapter=adapter,
        )

    def open(self, granted: HoldGranted, **changes: Any) -> OpenRecord:
        facts: dict[str, Any] = {
            "request_id": granted.request_id,
            "tenant_id": self.tenant_id,
            "project_id": self.project_id,
            "key_id": self.key_id,
            "model": MODEL,
            "tier": "standard",
            "region": "test",
            "price": granted.price,
            "list_price": granted.list_price,
            "admitted_at": granted.admitted_at,
            "replica_id": "host-1/river-0",
            "boot_id": "boot-1",
            "simulated": False,
            "stream": True,
        }
        return OpenRecord(**{**facts, **changes})

    def ended(
        self,
        granted: HoldGranted,
        usage: TokenUsage,
        outcome: Outcome = Outcome.COMPLETED,
        **changes: Any,
    ) -> UsageRecord:
        facts = {"duration_us": 1_000, **changes}
        return UsageRecord(open=self.open(granted), outcome=outcome, usage=usage, **facts)


async def make_customer(
    database: Database, credit_usd: str = "0", *, name: str = "Acme", mode: Any = "prepaid"
) -> Customer:
    """An organisation with its account, and credit when it is prepaid."""
    customer = Customer(name=name)
    async with database.system() as connection:
        await connection.execute(
            text("INSERT INTO tenants (id, name, slug) VALUES (:id, :name, :slug)"),
            {"id": customer.tenant_id, "name": name, "slug": f"t-{customer.tenant_id}"},
        )
        await connection.execute(
            text("INSERT INTO projects (id, tenant_id, name) VALUES (:id, :tenant, 'default')"),
            {"id": customer.project_id, "tenant": customer.tenant_id},
        )
        await connection.execute(
            text(
                "INSERT INTO api_keys (id, tenant_id, project_id, name, kind, hash, last4) "
                "VALUES (:id, :tenant, :project, 'k', 'live', sha256(CAST(:secret AS bytea)), 'abcd')"
            ),
            {
                "id": customer.key_id,
                "tenant": customer.tenant_id,
                "project": customer.project_id,
                "secret": customer.key_id.bytes,
            },
        )
        await open_account(connection, customer.tenant_id, mode)
        if mode == "prepaid" and credit_usd != "0":
            await grant_credit(connection, customer.tenant_id, credit_usd, "test", "tester")
    return customer


async def price(database: Database, model: str = MODEL, tenant_id: UUID | None = None, **rates: str) -> int:
    """Set a price that holds from now; returns its version."""
    amounts = {"input": "1", "cached_input": "0.1", "output": "10", "reasoning": "20", **rates}
    async with database.system() as connection:
        view = await set_price(
            connection,
            model=model,
            tier="standard",
            tenant_id=tenant_id,
            rates=Rates(**amounts),
            effective_from=None,
            created_by="tester",
        )
    return view.id


async def insert_adapter(
    database: Database, customer: Customer, public_name: str, model: str = MODEL
) -> None:
    """Give a customer an adapter without files."""
    async with database.system() as connection:
        await connection.execute(
            text("INSERT INTO models (name, status) VALUES (:model, 'active') ON CONFLICT DO NOTHING"),
            {"model": model},
        )
        await connection.execute(
            text(
                "INSERT INTO adapters (id, tenant_id, model, name, public_name, source, rank, bytes, files) "
                "VALUES (:id, :tenant, :model, :name, :name, 'upload', 8, 1, '[]')"
            ),
            {"id": uuid7(), "tenant": customer.tenant_id, "model": model, "name": public_name},
        )


async def adapter_price(database: Database, customer: Customer, public_name: str, **rates: str) -> int:
    """Give a customer an adapter of MODEL with a price of its own; returns its version."""
    await insert_adapter(database, customer, public_name)
    return await price(database, public_name, customer.tenant_id, **rates)


async def account(database: Database, customer: Customer) -> Any:
    """The raw account row."""
    async with database.system() as connection:
        result = await connection.execute(
            text("SELECT * FROM billing_accounts WHERE tenant_id = :id"), {"id": customer.tenant_id}
        )
        return result.one()


async def usage_rows(database: Database, customer: Customer) -> dict[UUID, Any]:
    """The customer's usage rows by request id."""
    async with database.system() as connection:
        result = await connection.execute(
            text("SELECT * FROM usage WHERE tenant_id = :id"), {"id": customer.tenant_id}
        )
        return {row.request_id: row for row in result}


async def transfers(database: Database, customer: Customer) -> list[Any]:
    """The customer's ledger transfers in their order."""
    async with database.system() as connection:
        result = await connection.execute(
            text("SELECT * FROM ledger_transfers WHERE tenant_id = :id ORDER BY id"),
            {"id": customer.tenant_id},
        )
        return list(result)


async def terminate_hot_connections(pg_url: str) -> int:
    """Cut every hot-path connection, as a failing server would."""
    connection = await asyncpg.connect(pg_url)
    try:
        rows = await connection.fetch(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'penstock-hot' AND datname = current_database()"
        )
        return len(rows)
    finally:
        await connection.close()


def utc(*parts: int) -> datetime:
    """An instant in UTC."""
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc, arg-type]
