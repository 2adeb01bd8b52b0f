"""Credit that was given before there were lots becomes lots, with the use so far taken from the oldest."""

import asyncio
from uuid import UUID

import asyncpg
from alembic import command

from billing.ledger.verification import verify
from core.db import Database
from core.ids import uuid7
from core.services import alembic_config, migrate
from tests.support.services import Services

NAME = "before_lots"


async def test_earlier_credit_becomes_lots(services: Services) -> None:
    server = await asyncpg.connect(services.postgres_url)
    name = f"{NAME}_{services.database}"
    try:
        await server.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await server.execute(f"CREATE DATABASE {name}")
        url = services.url(name)
        await asyncio.to_thread(command.upgrade, alembic_config(url), "0006_usage_store")
        tenant_id, first, second = await _earlier_credit(url)
        await migrate(url)
        database = Database(url)
        try:
            async with database.system() as connection:
                assert (await verify(connection)).problems == []
        finally:
            await database.close()
        upgraded = await asyncpg.connect(url)
        try:
            lots = await upgraded.fetch("SELECT * FROM credit_grants WHERE tenant_id = $1", tenant_id)
            assert {lot["id"]: (lot["kind"], lot["remaining"], lot["expires_at"]) for lot in lots} == {
                first: ("promotional", 0, None),
                second: ("promotional", 30, None),
            }
            assert await upgraded.fetchval("SELECT sum(amount) FROM grant_draws") == 120
        finally:
            await upgraded.close()
    finally:
        await server.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await server.close()


async def _earlier_credit(url: str) -> tuple[UUID, UUID, UUID]:
    """A customer with two credits of 100 and 50, of which 120 are used."""
    tenant_id, first, second = uuid7(), uuid7(), uuid7()
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(
            "INSERT INTO tenants (id, name, slug) VALUES ($1, 'Acme', 'acme')", tenant_id
        )
        await connection.execute("SELECT penstock_open_account($1, 'prepaid')", tenant_id)
        for grant_id, amount in ((first, 100), (second, 50)):
            await connection.execute(
                "SELECT penstock_grant($1, $2, $3, 'r', 't')", grant_id, tenant_id, amount
            )
        await connection.execute(
            "SELECT penstock_book('commit', $1, 'credit', 'revenue', 120, $2)", tenant_id, uuid7()
        )
    finally:
        await connection.close()
    return tenant_id, first, second
