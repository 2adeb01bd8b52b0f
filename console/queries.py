"""The few questions that only pages ask of the database."""

from uuid import UUID

from sqlalchemy import exists, select

from billing.ledger.accounts import AccountView, list_accounts
from billing.metering.tables import usage
from core.db import Database


async def all_accounts(database: Database) -> dict[UUID, AccountView]:
    """The billing accounts of all organisations, for pages that only the platform's people may open."""
    async with database.read() as connection:
        return {account.tenant_id: account for account in await list_accounts(connection)}


async def has_requests(database: Database, tenant_id: UUID) -> bool:
    """Whether the organisation has ever had a request answered and settled."""
    async with database.read(tenant_id) as connection:
        found = await connection.execute(select(exists().where(usage.c.tenant_id == tenant_id)))
        return bool(found.scalar_one())
