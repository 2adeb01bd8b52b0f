"""Credit of organisations: grants and lots."""

from datetime import datetime
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor, require
from admin.approval_limit import Acting, Facts, instant_fact, parse_instant, under_limit
from admin.audit import record
from admin.transactions import page_size, read
from billing.ledger import accounts, credits
from billing.ledger.accounts import AccountView, GrantView
from billing.ledger.credits import Lot, LotKind
from billing.pricing import prices
from core.db import Database
from core.errors import InvalidRequest
from core.ids import uuid7
from tenants.names import clean_reason
from tenants.roles import PLATFORM_ROLES, READERS

CREDIT_GRANT = "credit.grant"
"""The kind of grants under the approval limit."""


async def grant_credit(
    database: Database,
    actor: Actor,
    *,
    tenant_id: UUID,
    amount_usd: str,
    reason: str,
    grant_id: UUID | None = None,
    kind: LotKind = "promotional",
    expires_at: datetime | None = None,
    priority: int | None = None,
    currency: str = prices.CURRENCY,
) -> AccountView:
    """Give prepaid credit: `promotional`, or `purchased` for money that came outside of Stripe. Lots with a lower
    `priority` are used first. The same `grant_id` again changes nothing. Above the approval limit
    it waits for a second person.

    Raises InvalidRequest, Conflict, NotFound, WaitsForApproval.
    """
    require(actor, *PLATFORM_ROLES)
    prices.check_currency(currency)
    if kind not in ("promotional", "purchased"):
        raise InvalidRequest(
            f"kind must be promotional or purchased, not {kind[:40]!r}; corrections are adjustments",
            param="kind",
        )
    grant_id = grant_id or uuid7()
    facts = {
        "grant_id": str(grant_id),
        "amount_usd": amount_usd,
        "kind": kind,
        "expires_at": instant_fact(expires_at),
        "priority": priority,
        "reason": clean_reason(reason),
    }
    return await under_limit(
        database,
        actor,
        apply_grant,
        kind=CREDIT_GRANT,
        tenant_id=tenant_id,
        amount=accounts.parse_usd(amount_usd, "amount_usd"),
        facts=facts,
        source_id=grant_id,
    )


async def apply_grant(
    connection: AsyncConnection, acting: Acting, tenant_id: UUID | None, facts: Facts
) -> AccountView:
    """Carry out `grant_credit`."""
    assert tenant_id is not None  # noqa: S101 - requests of this kind always name it
    before = await accounts.get_account(connection, tenant_id, lock=True)
    is_new = await accounts.grant_credit(
        connection,
        tenant_id,
        facts["amount_usd"],
        facts["reason"],
        acting.requested_by,
        UUID(facts["grant_id"]),
        kind=facts["kind"],
        expires_at=parse_instant(facts["expires_at"]),
        priority=facts["priority"],
    )
    after = await accounts.get_account(connection, tenant_id)
    if not is_new:
        return after
    await record(
        connection,
        acting.actor,
        CREDIT_GRANT,
        tenant_id=tenant_id,
        object_kind="billing_account",
        object_id=tenant_id,
        reason=facts["reason"],
        before={"balance_usd": before.balance_usd},
        after={
            "balance_usd": after.balance_usd,
            **{name: facts[name] for name in ("amount_usd", "kind", "expires_at")},
        },
    )
    return after


async def list_lots(database: Database, actor: Actor, *, tenant_id: UUID, spent: bool = False) -> list[Lot]:
    """Credit by lot, in the order in which it is used; `spent` adds lots with nothing left."""
    async with read(database, actor, READERS, tenant_id=tenant_id) as connection:
        return await credits.list_lots(connection, tenant_id, spent=spent)


async def list_grants(
    database: Database, actor: Actor, *, tenant_id: UUID, limit: int = 100
) -> list[GrantView]:
    """The newest credits of an organisation first."""
    async with read(database, actor, READERS, tenant_id=tenant_id) as connection:
        return await accounts.list_grants(connection, tenant_id, page_size(limit))
