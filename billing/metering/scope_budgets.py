"""Monthly budgets of projects and keys, and the list of all budgets.

penstock_hold enforces them under the lock of the organisation's account.
"""

from typing import Literal
from uuid import UUID

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from core.errors import NotFound
from core.money import pico_to_usd

BudgetScope = Literal["project", "key"]


AnyScope = Literal["project", "key", "end_user", "tag", "every_end_user"]


class ScopeBudget(msgspec.Struct, frozen=True):
    """A budget in the present UTC month; amounts are exact decimal dollars."""

    scope: AnyScope
    scope_id: UUID
    name: str | None
    """The end user, or the tag as tag_NAME=VALUE."""
    stops: bool
    """False: it sends notices only."""
    budget_usd: str
    spent_this_month_usd: str
    """For every_end_user: by all end users together that have no budget of their own."""
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


_BUDGETS = text(
    "SELECT b.scope, b.scope_id, b.label, b.stops, b.amount, b.held, penstock_scope_spent(b) AS spent "
    "FROM scope_budgets b WHERE b.tenant_id = :tenant AND b.amount IS NOT NULL "
    "UNION ALL SELECT 'every_end_user', penstock_label_scope(a.tenant_id, 'user'), NULL, true, a.end_user_budget, "
    "coalesce(sum(b.held), 0), coalesce(sum(penstock_scope_spent(b)), 0) FROM billing_accounts a "
    "LEFT JOIN scope_budgets b ON b.tenant_id = a.tenant_id AND b.amount IS NULL "
    "WHERE a.tenant_id = :tenant AND a.end_user_budget IS NOT NULL GROUP BY a.tenant_id, a.end_user_budget "
    "ORDER BY 1 DESC, 3, 2"
)


async def list_budgets(connection: AsyncConnection, tenant_id: UUID) -> list[ScopeBudget]:
    """The budgets of an organisation's projects, keys, end users and tags, but not of the organisation itself."""
    rows = await connection.execute(_BUDGETS, {"tenant": tenant_id})
    return [
        ScopeBudget(
            scope=row.scope,
            scope_id=row.scope_id,
            name=None if row.label is None else row.label.removeprefix("user="),
            stops=row.stops,
            budget_usd=pico_to_usd(int(row.amount)),
            spent_this_month_usd=pico_to_usd(int(row.spent)),
            held_usd=pico_to_usd(int(row.held)),
        )
        for row in rows
    ]
