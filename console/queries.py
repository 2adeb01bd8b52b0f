"""Database queries that only pages need."""

from uuid import UUID

from sqlalchemy import exists, select

from billing.ledger.accounts import AccountView, list_accounts
from billing.metering.tables import usage
from core.db import Database


async def all_accounts(database: Database) -> dict[UUID, AccountView]:
    """Billing accounts of all organisations by id. Only for pages of platform roles: it checks no rights."""
    async with database.read() as connection:
        return {account.tenant_id: account for account in await list_accounts(connection)}


async def has_requests(database: Database, tenant_id: UUID) -> bool:
    """Whether the organisation has at least one settled request."""
    async with database.read(tenant_id) as connection:
        found = await connection.execute(select(exists().where(usage.c.tenant_id == tenant_id)))
        return bool(found.scalar_one())
