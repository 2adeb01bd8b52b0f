"""A second person for tests: approves everything that waits, as the console's or the REST's route would."""

from uuid import UUID

from admin import decisions
from admin.actor import Actor, system_actor
from admin.users import create_admin_token, create_user
from billing.ledger import money_rules
from billing.ledger.money_rules import MoneyRules
from core.db import Database
from core.ids import uuid7
from core.money import usd_to_pico

SECOND = Actor(kind="user", id=str(UUID(int=2)), label="second@example.com", role="finance")
"""The person who approves; no test signs in as this one."""
_PLATFORM = system_actor("test")


async def set_limit(database: Database, usd: str) -> None:
    """Store the approval limit, as the first start does."""
    async with database.system() as connection:
        await money_rules.store_rules(connection, MoneyRules(approval_limit=usd_to_pico(usd)))


async def token_of(database: Database, pepper: bytes, email: str) -> str:
    """A new platform admin's token, which tells commands in PENSTOCK_ADMIN_TOKEN who acts."""
    user = await create_user(database, _PLATFORM, email=email, password=uuid7().hex, role="platform_admin")
    return (await create_admin_token(database, _PLATFORM, pepper=pepper, user_id=user.id, name="test")).secret


async def approve_all(database: Database, kind: str | None = None) -> list[decisions.Decision]:
    """Approve every open request of others, or those of one kind, as SECOND, the oldest first."""
    return [
        await decisions.decide(database, SECOND, approval_id=one.id, approve=True)
        for one in await decisions.list_approvals(database, SECOND)
        if one.requested_by != SECOND.label and kind in (None, one.kind)
    ]


async def approve_requests(pg_url: str, kind: str | None = None) -> None:
    """Approve what waits, for tests of a running platform."""
    database = Database(pg_url)
    try:
        await approve_all(database, kind)
    finally:
        await database.close()
