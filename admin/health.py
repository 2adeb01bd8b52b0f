"""Financial health checks for platform roles."""

from admin.actor import Actor
from admin.transactions import read
from billing.reports.money_health import MoneyHealth
from billing.reports.money_health import money_health as ask
from core.db import Database
from tenants.roles import PLATFORM_ROLES


async def money_health(database: Database, actor: Actor) -> MoneyHealth:
    """Unexplained tokens, blocked pushes, differences to Stripe, undelivered notices, drift of the last hour."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return await ask(connection)
