"""Monthly budgets of projects, keys, end users and tags, beyond which new requests get 402."""

from uuid import UUID

from admin.actor import Actor, require
from admin.audit import record
from admin.transactions import read, write_system
from billing.ledger.accounts import parse_usd
from billing.metering import label_budgets, scope_budgets
from billing.metering.scope_budgets import BudgetScope, ScopeBudget
from core.db import Database
from core.errors import NotFound
from tenants import limit_store
from tenants.roles import PLATFORM_ROLES, READERS, TENANT_MANAGERS


async def set_budget(
    database: Database, actor: Actor, *, tenant_id: UUID, scope: BudgetScope, scope_id: UUID, usd: str | None
) -> list[ScopeBudget]:
    """Set the monthly budget of a project or key, or remove it with None; returns the organisation's budgets.

    Raises NotFound when the organisation has no such project or key, InvalidRequest.
    """
    require(actor, *PLATFORM_ROLES, *TENANT_MANAGERS, tenant_id=tenant_id)
    amount = None if usd is None else parse_usd(usd, "budget_usd")
    async with write_system(database) as connection:
        if not await limit_store.scope_exists(connection, tenant_id, scope, scope_id):
            raise NotFound(f"the organisation has no {scope} with the id {scope_id}", param="scope_id")
        before = _of(await scope_budgets.list_budgets(connection, tenant_id), scope_id)
        await scope_budgets.set_budget(connection, tenant_id, scope, scope_id, amount)
        after = await scope_budgets.list_budgets(connection, tenant_id)
        await record(
            connection,
            actor,
            "budget.set",
            tenant_id=tenant_id,
            object_kind=scope,
            object_id=scope_id,
            before=before,
            after=_of(after, scope_id),
        )
    return after


async def set_label_budget(
    database: Database, actor: Actor, *, tenant_id: UUID, label: str, usd: str | None, stops: bool = True
) -> list[ScopeBudget]:
    """Set the monthly budget of an end user, of every end user or of a tag, or remove it with None; returns all.

    `label`: see label_budgets.label_of, or EVERY_END_USER. Raises InvalidRequest, NotFound, Conflict.
    """
    require(actor, *PLATFORM_ROLES, *TENANT_MANAGERS, tenant_id=tenant_id)
    amount = None if usd is None else parse_usd(usd, "budget_usd")
    async with write_system(database) as connection:
        scope_id = await label_budgets.scope_id_of(connection, tenant_id, label)
        before = _of(await scope_budgets.list_budgets(connection, tenant_id), scope_id)
        await label_budgets.set_budget(connection, tenant_id, label, amount, stops=stops)
        after = await scope_budgets.list_budgets(connection, tenant_id)
        await record(
            connection,
            actor,
            "budget.set",
            tenant_id=tenant_id,
            object_kind=label.partition("=")[0],
            object_id=scope_id,
            before=before,
            after=_of(after, scope_id),
        )
    return after


async def list_budgets(database: Database, actor: Actor, *, tenant_id: UUID) -> list[ScopeBudget]:
    """The budgets of an organisation's projects, keys, end users and tags."""
    async with read(database, actor, READERS, tenant_id=tenant_id) as connection:
        return await scope_budgets.list_budgets(connection, tenant_id)


def _of(budgets: list[ScopeBudget], scope_id: UUID) -> ScopeBudget | None:
    return next((one for one in budgets if one.scope_id == scope_id), None)
