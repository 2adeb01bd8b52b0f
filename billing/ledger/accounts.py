"""Billing accounts: one row per tenant with its balance, holds, budget and credit limit."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec
from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.ledger.credits import LotKind, add_lot
from core.errors import Conflict, InvalidRequest, NotFound
from core.ids import uuid7
from core.money import MAX_PICO, pico_to_usd, usd_to_pico
from tenants.scoping import platform_wide

Mode = Literal["prepaid", "postpaid"]

MAX_AMOUNT = 10**12 * 10**12
"""The largest grant, budget or credit limit in picodollars: a trillion dollars, far below NUMERIC(38,0)."""


_SELECT = (
    "SELECT tenant_id, mode, balance, held, open_holds, owed, invoiced, credit_limit, budget, "
    "penstock_spent(b) AS spent, "
    "least(penstock_funds(b), budget - penstock_spent(b)) - held AS available FROM billing_accounts b"
)


class AccountView(msgspec.Struct, frozen=True):
    """A billing account for display; amounts are exact decimal dollars."""

    tenant_id: UUID
    mode: str
    """prepaid | postpaid"""
    balance_usd: str
    """Unused prepaid credit, open holds included."""
    held_usd: str
    """Reserved by open holds."""
    available_usd: str | None
    """What a new request may still reserve, also under the budget; None = no bound."""
    open_requests: int
    owed_usd: str
    """Postpaid usage that is not invoiced yet; below 0 when the customer is in credit."""
    invoiced_usd: str
    """Invoices that are not paid yet."""
    credit_limit_usd: str | None
    budget_usd: str | None
    """Budget per UTC month; None = none."""
    spent_this_month_usd: str


class GrantView(msgspec.Struct, frozen=True):
    """One credit grant."""

    id: UUID
    tenant_id: UUID
    amount_usd: str
    reason: str
    created_by: str
    created_at: str


async def open_account(connection: AsyncConnection, tenant_id: UUID, mode: Mode) -> None:
    """Create the tenant's billing account and ledger accounts. Idempotent."""
    await connection.execute(
        text("SELECT penstock_open_account(:tenant, :mode)"), {"tenant": tenant_id, "mode": mode}
    )


async def get_account(connection: AsyncConnection, tenant_id: UUID, *, lock: bool = False) -> AccountView:
    """The account of a tenant. Raises NotFound."""
    row = (
        await connection.execute(
            text(f"{_SELECT} WHERE tenant_id = :tenant{' FOR UPDATE' if lock else ''}"),
            {"tenant": tenant_id},
        )
    ).one_or_none()
    if row is None:
        raise NotFound(f"there is no billing account of an organisation {tenant_id}")
    return _view(row)


@platform_wide("the console lists the accounts of all organisations")
async def list_accounts(connection: AsyncConnection) -> list[AccountView]:
    """The accounts that the session may see; a platform session sees those of all tenants."""
    return [_view(row) for row in await connection.execute(text(_SELECT))]


def _view(row: Row[Any]) -> AccountView:
    return AccountView(
        tenant_id=row.tenant_id,
        mode=row.mode,
        balance_usd=pico_to_usd(int(row.balance)),
        held_usd=pico_to_usd(int(row.held)),
        available_usd=None if row.available is None else pico_to_usd(max(int(row.available), 0)),
        open_requests=row.open_holds,
        owed_usd=pico_to_usd(int(row.owed)),
        invoiced_usd=pico_to_usd(int(row.invoiced)),
        credit_limit_usd=_usd_or_none(row.credit_limit),
        budget_usd=_usd_or_none(row.budget),
        spent_this_month_usd=pico_to_usd(int(row.spent)),
    )


async def grant_credit(
    connection: AsyncConnection,
    tenant_id: UUID,
    amount_usd: str,
    reason: str,
    created_by: str,
    grant_id: UUID | None = None,
    *,
    kind: LotKind = "promotional",
    expires_at: datetime | None = None,
    priority: int | None = None,
) -> bool:
    """Add `amount_usd` of prepaid credit: one lot and one ledger transfer, in the caller's transaction.

    Idempotent by `grant_id`: returns whether it is new. `kind`, `expires_at` and `priority` are those of
    `credits.add_lot`. Raises InvalidRequest
    for an amount that is not positive or not exact, or a wrong kind, priority or expiry; Conflict for a postpaid
    account or another lot of the same id; NotFound without an account.
    """
    amount = parse_usd(amount_usd, "amount_usd")
    if amount == 0:
        raise InvalidRequest("the amount of a credit must be above 0", param="amount_usd")
    account = await get_account(connection, tenant_id, lock=True)
    if account.mode != "prepaid":
        raise Conflict("a postpaid account takes no prepaid credit")
    return await add_lot(
        connection,
        lot_id=grant_id or uuid7(),
        tenant_id=tenant_id,
        amount=amount,
        kind=kind,
        reason=reason,
        created_by=created_by,
        expires_at=expires_at,
        priority=priority,
    )


async def list_grants(connection: AsyncConnection, tenant_id: UUID, limit: int = 100) -> list[GrantView]:
    """At most `limit` credit grants of a tenant, the newest first."""
    rows = await connection.execute(
        text(
            "SELECT id, tenant_id, amount, reason, created_by, created_at FROM credit_grants "
            "WHERE tenant_id = :tenant ORDER BY created_at DESC, id DESC LIMIT :limit"
        ),
        {"tenant": tenant_id, "limit": limit},
    )
    return [_grant_view(row) for row in rows]


async def set_budget(connection: AsyncConnection, tenant_id: UUID, usd: str | None) -> AccountView:
    """Set the monthly budget in dollars, None for none. Running requests go on. Raises InvalidRequest, NotFound."""
    amount = None if usd is None else parse_usd(usd, "budget_usd")
    await get_account(connection, tenant_id, lock=True)
    await connection.execute(
        text("UPDATE billing_accounts SET budget = :amount WHERE tenant_id = :tenant"),
        {"amount": amount, "tenant": tenant_id},
    )
    return await get_account(connection, tenant_id)


async def set_credit_limit(connection: AsyncConnection, tenant_id: UUID, usd: str | None) -> AccountView:
    """Limit in dollars what a postpaid tenant may owe, unpaid invoices included; None for no limit.

    Raises InvalidRequest, Conflict for a prepaid account, NotFound.
    """
    amount = None if usd is None else parse_usd(usd, "credit_limit_usd")
    account = await get_account(connection, tenant_id, lock=True)
    if account.mode != "postpaid":
        raise Conflict("only a postpaid account has a credit limit; a prepaid one spends its balance")
    await connection.execute(
        text("UPDATE billing_accounts SET credit_limit = :amount WHERE tenant_id = :tenant"),
        {"amount": amount, "tenant": tenant_id},
    )
    return await get_account(connection, tenant_id)


def parse_usd(value: str, param: str) -> int:
    """The picodollars of a decimal dollar amount of the parameter `param`.

    Raises InvalidRequest for an amount that is not a number, not exact, negative or above MAX_AMOUNT.
    """
    try:
        amount = usd_to_pico(value)
    except ValueError as error:
        raise InvalidRequest(f"{param}: {error}", param=param) from None
    if not 0 <= amount <= min(MAX_AMOUNT, MAX_PICO):
        raise InvalidRequest(f"{param} must be between 0 and a trillion dollars, not {value}", param=param)
    return amount


def _usd_or_none(value: int | None) -> str | None:
    return None if value is None else pico_to_usd(int(value))


def _grant_view(row: Row[tuple[object, ...]]) -> GrantView:
    return GrantView(
        id=row.id,
        tenant_id=row.tenant_id,
        amount_usd=pico_to_usd(int(row.amount)),
        reason=row.reason,
        created_by=row.created_by,
        created_at=row.created_at.isoformat(),
    )
