"""Accounts of organisations: balance, budget, credit limit."""

from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor, require
from admin.approval_limit import Acting, Facts, under_limit
from admin.audit import record
from admin.transactions import read, write_system
from billing.ledger import accounts
from billing.ledger.accounts import AccountView
from core.db import Database
from core.money import pico_to_usd, usd_to_pico
from tenants.names import clean_reason
from tenants.roles import PLATFORM_ROLES, READERS, TENANT_MANAGERS

CREDIT_LIMIT = "credit_limit.set"
"""The kind of credit limits under the approval limit."""


async def get_account(database: Database, actor: Actor, *, tenant_id: UUID) -> AccountView:
    """Balance, held money, budget and spending of an organisation. Raises NotFound."""
    async with read(database, actor, READERS, tenant_id=tenant_id) as connection:
        return await accounts.get_account(connection, tenant_id)


async def set_budget(database: Database, actor: Actor, *, tenant_id: UUID, usd: str | None) -> AccountView:
    """Set the monthly budget, or lift it with None. New requests beyond it get 402. Raises InvalidRequest, NotFound."""
    require(actor, "platform_admin", "finance", *TENANT_MANAGERS, tenant_id=tenant_id)
    async with write_system(database) as connection:
        before = await accounts.get_account(connection, tenant_id, lock=True)
        after = await accounts.set_budget(connection, tenant_id, usd)
        await record(
            connection,
            actor,
            "budget.set",
            tenant_id=tenant_id,
            object_kind="billing_account",
            object_id=tenant_id,
            before={"budget_usd": before.budget_usd},
            after={"budget_usd": after.budget_usd},
        )
    return after


async def set_credit_limit(
    database: Database,
    actor: Actor,
    *,
    tenant_id: UUID,
    usd: str | None,
    reason: str,
) -> AccountView:
    """Set the credit limit of a postpaid organisation in US dollars; None = no limit.

    Raising it by more than the approval limit, or lifting it, waits for a second person. Raises
    InvalidRequest, Conflict, NotFound, WaitsForApproval.
    """
    require(actor, *PLATFORM_ROLES)
    new = None if usd is None else accounts.parse_usd(usd, "credit_limit_usd")

    async def amount(connection: AsyncConnection) -> int | None:
        known = (await accounts.get_account(connection, tenant_id, lock=True)).credit_limit_usd
        if known is None:
            return 0
        return None if new is None else max(new - usd_to_pico(known), 0)

    return await under_limit(
        database,
        actor,
        apply_credit_limit,
        kind=CREDIT_LIMIT,
        tenant_id=tenant_id,
        amount=amount,
        facts={
            "credit_limit_usd": None if new is None else pico_to_usd(new),
            "reason": clean_reason(reason),
        },
    )


async def apply_credit_limit(
    connection: AsyncConnection, acting: Acting, tenant_id: UUID | None, facts: Facts
) -> AccountView:
    """Carry out `set_credit_limit`."""
    assert tenant_id is not None  # noqa: S101 - requests of this kind always name it
    before = await accounts.get_account(connection, tenant_id, lock=True)
    after = await accounts.set_credit_limit(connection, tenant_id, facts["credit_limit_usd"])
    await record(
        connection,
        acting.actor,
        CREDIT_LIMIT,
        tenant_id=tenant_id,
        object_kind="billing_account",
        object_id=tenant_id,
        reason=facts["reason"],
        before={"credit_limit_usd": before.credit_limit_usd},
        after={"credit_limit_usd": after.credit_limit_usd},
    )
    return after
