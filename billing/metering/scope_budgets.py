"""Monthly budgets of projects and keys. penstock_hold enforces them under the lock of the organisation's account."""

from typing import Literal
from uuid import UUID

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from core.errors import NotFound
from core.money import pico_to_usd

BudgetScope = Literal["project", "key"]


class ScopeBudget(msgspec.Struct, frozen=True):
    """A budget of a project or key in the present UTC month; amounts are exact decimal dollars."""

    scope: BudgetScope
    scope_id: UUID
    budget_usd: str
    spent_this_month_usd: str
    held_usd: str
    """Reserved by open requests."""


async def set_budget(
    connection: AsyncConnection, tenant_id: UUID, scope: BudgetScope, scope_id: UUID, amount: int | None
) -> None:
    """Set the budget of a project or key in picodollars, or remove it with None. Running requests go on.

    The caller has checked that the scope belongs to the organisation. Raises NotFound without a billing account.
    """
    found = await connection.scalar(
        text("SELECT penstock_set_scope_budget(:tenant, :scope, :id, :amount)"),
        {"tenant": tenant_id, "scope": scope, "id": scope_id, "amount": amount},
    )
    if not found:
        raise NotFound(f"there is no billing account of the organisation {tenant_id}")


async def list_budgets(connection: AsyncConnection, tenant_id: UUID) -> list[ScopeBudget]:
    """The budgets of an organisation's projects and keys, projects first."""
    rows = await connection.execute(
        text(
            "SELECT b.scope, b.scope_id, b.amount, b.held, penstock_scope_spent(b) AS spent FROM scope_budgets b "
            "WHERE b.tenant_id = :tenant ORDER BY b.scope DESC, b.scope_id"
        ),
        {"tenant": tenant_id},
    )
    return [
        ScopeBudget(
            scope=row.scope,
            scope_id=row.scope_id,
            budget_usd=pico_to_usd(int(row.amount)),
            spent_this_month_usd=pico_to_usd(int(row.spent)),
            held_usd=pico_to_usd(int(row.held)),
        )
        for row in rows
    ]
