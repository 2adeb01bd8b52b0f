"""The few questions that only pages ask of the database."""

from uuid import UUID

from sqlalchemy import exists, select, text

from billing.accounts import AccountView
from billing.tables import usage
from core.db import Database
from core.money import pico_to_usd

_ACCOUNTS = text(
    "SELECT tenant_id, mode, balance, held, open_holds, owed, credit_limit, budget, penstock_spent(b) AS spent, "
    "least(penstock_funds(b), budget - penstock_spent(b)) - held AS available FROM billing_accounts b"
)
"""Every account as `billing.accounts.get_account` reads one."""


async def all_accounts(database: Database) -> dict[UUID, AccountView]:
    """The billing accounts of all organisations, for pages that only the platform's people may open."""
    async with database.read() as connection:
        rows = (await connection.execute(_ACCOUNTS)).all()
    return {
        row.tenant_id: AccountView(
            tenant_id=row.tenant_id,
            mode=row.mode,
            balance_usd=pico_to_usd(int(row.balance)),
            held_usd=pico_to_usd(int(row.held)),
            available_usd=None if row.available is None else pico_to_usd(max(int(row.available), 0)),
            open_requests=row.open_holds,
            owed_usd=pico_to_usd(int(row.owed)),
            credit_limit_usd=None if row.credit_limit is None else pico_to_usd(int(row.credit_limit)),
            budget_usd=None if row.budget is None else pico_to_usd(int(row.budget)),
            spent_this_month_usd=pico_to_usd(int(row.spent)),
        )
        for row in rows
    }


async def has_requests(database: Database, tenant_id: UUID) -> bool:
    """Whether the organisation has ever had a request answered and settled."""
    async with database.read(tenant_id) as connection:
        found = await connection.execute(select(exists().where(usage.c.tenant_id == tenant_id)))
        return bool(found.scalar_one())
