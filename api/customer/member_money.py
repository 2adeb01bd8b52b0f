"""Members read their organisation, its account and its audit log, and set its name and budget."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends

from admin import accounts as admin_accounts
from admin import audit as admin_audit
from admin import budgets as admin_budgets
from admin import credits as admin_credits
from admin import tenants as admin_tenants
from api.admin.audit import AuditOut
from api.admin.billing import AccountOut, BudgetUpdate, LotList, LotOut
from api.admin.deps import After, Limit, Page, ResponseModel, to_page
from api.admin.tenants import TenantOut, TenantUpdate
from api.customer.member_deps import Member, MemberDeps
from billing.metering.label_budgets import EVERY_END_USER, label_of
from billing.metering.scope_budgets import AnyScope, BudgetScope


class ScopeBudgetOut(ResponseModel):
    """A budget in the present UTC month. `name` is the end user, or the tag as tag_NAME=VALUE; null for the others."""

    scope: AnyScope
    scope_id: UUID
    name: str | None
    stops: bool
    budget_usd: str
    spent_this_month_usd: str
    held_usd: str


class LabelBudgetUpdate(BudgetUpdate):
    """A monthly budget of an end user or tag; `stops` false: it sends notices and refuses nothing."""

    stops: bool = True


def router(deps: MemberDeps) -> APIRouter:
    """Routes of the organisation itself, its account and its budget."""
    routes = deps.router("account and budgets")
    _organisation_routes(routes, deps)
    _account_routes(routes, deps)
    _label_budget_routes(routes, deps)
    _budget_routes(routes, deps)
    return routes


def _organisation_routes(routes: APIRouter, deps: MemberDeps) -> None:
    auth = Depends(deps.member)

    @routes.get("", summary="The own organisation")
    async def get_organisation(member: Annotated[Member, auth]) -> TenantOut:
        return TenantOut.model_validate(
            await admin_tenants.get_tenant(deps.database, member.actor, tenant_id=member.tenant_id)
        )

    @routes.patch("", summary="Rename the organisation (owners)")
    async def rename(member: Annotated[Member, auth], body: TenantUpdate) -> TenantOut:
        return TenantOut.model_validate(
            await admin_tenants.rename_tenant(
                deps.database, member.actor, tenant_id=member.tenant_id, name=body.name
            )
        )

    @routes.get("/audit", summary="What was done in the organisation, the newest first")
    async def audit(
        member: Annotated[Member, auth], limit: Limit = 100, after: After = None
    ) -> Page[AuditOut]:
        rows = await admin_audit.list_audit(
            deps.database, member.actor, tenant_id=member.tenant_id, limit=limit + 1, after=after
        )
        return to_page(rows, limit, AuditOut)


def _account_routes(routes: APIRouter, deps: MemberDeps) -> None:
    auth = Depends(deps.member)

    @routes.get("/account", summary="Balance, held money and budget")
    async def get_account(member: Annotated[Member, auth]) -> AccountOut:
        return AccountOut.model_validate(
            await admin_accounts.get_account(deps.database, member.actor, tenant_id=member.tenant_id)
        )

    @routes.get("/account/lots", summary="Credit by lot, in the order in which it is used")
    async def list_lots(member: Annotated[Member, auth]) -> LotList:
        rows = await admin_credits.list_lots(deps.database, member.actor, tenant_id=member.tenant_id)
        return LotList(data=[LotOut.model_validate(row) for row in rows])

    @routes.put("/account/budget", summary="Set or remove the organisation's monthly budget (owners)")
    async def set_budget(member: Annotated[Member, auth], body: BudgetUpdate) -> AccountOut:
        return AccountOut.model_validate(
            await admin_accounts.set_budget(
                deps.database, member.actor, tenant_id=member.tenant_id, usd=body.budget_usd
            )
        )


def _label_budget_routes(routes: APIRouter, deps: MemberDeps) -> None:
    """Budgets of end users and tags. Their paths come before those of projects and keys, which would match them."""
    auth = Depends(deps.member)

    async def set_budget(
        member: Member, label: str, usd: str | None, *, stops: bool = True
    ) -> list[ScopeBudgetOut]:
        rows = await admin_budgets.set_label_budget(
            deps.database, member.actor, tenant_id=member.tenant_id, label=label, usd=usd, stops=stops
        )
        return [ScopeBudgetOut.model_validate(row) for row in rows]

    @routes.put("/budgets/end_user", summary="Set or remove the monthly budget of every end user (owners)")
    async def set_every_end_user(member: Annotated[Member, auth], body: BudgetUpdate) -> list[ScopeBudgetOut]:
        """It holds for each end user that requests name and that has no budget of its own."""
        return await set_budget(member, EVERY_END_USER, body.budget_usd)

    @routes.put(
        "/budgets/end_user/{name:path}", summary="Set or remove the monthly budget of an end user (owners)"
    )
    async def set_end_user(
        member: Annotated[Member, auth], name: str, body: LabelBudgetUpdate
    ) -> list[ScopeBudgetOut]:
        """It takes the place of that of every end user. Beyond it, requests that name the end user get 402."""
        return await set_budget(member, label_of("end_user", name), body.budget_usd, stops=body.stops)

    @routes.put("/budgets/tag/{name:path}", summary="Set or remove the monthly budget of a tag (owners)")
    async def set_tag(
        member: Annotated[Member, auth], name: str, body: LabelBudgetUpdate
    ) -> list[ScopeBudgetOut]:
        """The tag is written tag_NAME=VALUE. Beyond its budget, requests with this tag get 402."""
        return await set_budget(member, label_of("tag", name), body.budget_usd, stops=body.stops)


def _budget_routes(routes: APIRouter, deps: MemberDeps) -> None:
    auth = Depends(deps.member)

    @routes.get("/budgets", summary="Monthly budgets of projects, keys, end users and tags")
    async def list_budgets(member: Annotated[Member, auth]) -> list[ScopeBudgetOut]:
        rows = await admin_budgets.list_budgets(deps.database, member.actor, tenant_id=member.tenant_id)
        return [ScopeBudgetOut.model_validate(row) for row in rows]

    @routes.put(
        "/budgets/{scope}/{scope_id}",
        summary="Set or remove the monthly budget of a project or key (owners)",
    )
    async def set_scope_budget(
        member: Annotated[Member, auth], scope: BudgetScope, scope_id: UUID, body: BudgetUpdate
    ) -> list[ScopeBudgetOut]:
        """New requests beyond it get 402 `budget_exceeded`; open requests count with what they may cost."""
        rows = await admin_budgets.set_budget(
            deps.database,
            member.actor,
            tenant_id=member.tenant_id,
            scope=scope,
            scope_id=scope_id,
            usd=body.budget_usd,
        )
        return [ScopeBudgetOut.model_validate(row) for row in rows]
