"""The starter credit of new organisations. Setting it is the act that takes two people, not each grant."""

from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor, require
from admin.approval_limit import Acting, Facts, under_limit
from admin.audit import record
from admin.transactions import read
from billing.ledger import starter_credit
from billing.ledger.starter_credit import StarterCredit
from core.db import Database
from tenants import members
from tenants.names import clean_reason
from tenants.roles import PLATFORM_ROLES

STARTER_CREDIT_SET = "starter_credit.set"
"""The kind of changes of the starter credit under the approval limit; without a bound."""


async def get_starter_credit(database: Database, actor: Actor) -> StarterCredit:
    """What a new prepaid organisation gets."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return await starter_credit.get(connection)


async def set_starter_credit(
    database: Database, actor: Actor, *, amount_usd: str, expires_days: int | None, reason: str
) -> StarterCredit:
    """Change what new prepaid organisations get; "0" = nothing. Those that exist get nothing.

    On a platform with two people another person must approve it, unless it becomes 0: it has no bound, since the
    number of organisations to come is unknown. Raises InvalidRequest, PermissionDenied, WaitsForApproval.
    """
    require(actor, *PLATFORM_ROLES)
    value = starter_credit.checked(amount_usd, expires_days)

    async def unbounded(connection: AsyncConnection) -> int | None:
        await members.lock_administrators(connection)
        alone = value.amount_usd == "0.00" or not await members.has_two_people(connection)
        return 0 if alone else None

    return await under_limit(
        database,
        actor,
        apply_starter_credit,
        kind=STARTER_CREDIT_SET,
        tenant_id=None,
        amount=unbounded,
        facts={
            "starter_usd": value.amount_usd,
            "expires_days": expires_days,
            "reason": clean_reason(reason),
        },
    )


async def apply_starter_credit(
    connection: AsyncConnection, acting: Acting, tenant_id: UUID | None, facts: Facts
) -> StarterCredit:
    """Carry out `set_starter_credit`."""
    del tenant_id
    before = await starter_credit.get(connection)
    value = StarterCredit(facts["starter_usd"], facts["expires_days"])
    await starter_credit.store(connection, value)
    await record(
        connection,
        acting.actor,
        STARTER_CREDIT_SET,
        tenant_id=None,
        object_kind="starter_credit",
        object_id="platform",
        reason=facts["reason"],
        before=before,
        after=value,
    )
    return value
