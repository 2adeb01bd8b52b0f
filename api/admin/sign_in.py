"""Admin API: what sign-ins must prove, for the platform's own people and those of organisations."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends
from pydantic import Field

from admin import sign_in_rules
from admin.actor import Actor
from api.admin.deps import AdminDeps, Reason, RequestBody, ResponseModel
from tenants.sign_in_rules import Rule


class RuleOut(ResponseModel):
    """What sign-ins must prove."""

    tenant_id: UUID | None = Field(description="null = the people of the platform.")
    rule: Rule = Field(
        description="`second_factor`: a password and a code; who has no second factor must enrol one."
    )
    ended: int = Field(description="How many sessions and tokens a change has ended.")


class RuleSet(RequestBody):
    """The new rule."""

    rule: Rule
    reason: Reason | None = None


def router(deps: AdminDeps) -> APIRouter:
    """Routes of the rules."""
    routes = deps.router("sign-in")
    auth = Depends(deps.actor)

    @routes.get("/sign-in", summary="What sign-ins of the platform's people must prove")
    async def get_platform_rule(actor: Annotated[Actor, auth]) -> RuleOut:
        return RuleOut.model_validate(await sign_in_rules.get_rule(deps.database, actor))

    @routes.put("/sign-in", summary="Set what sign-ins of the platform's people must prove")
    async def set_platform_rule(actor: Annotated[Actor, auth], body: RuleSet) -> RuleOut:
        """Sessions and tokens that were proved by less end, also the one in use."""
        return RuleOut.model_validate(
            await sign_in_rules.set_rule(deps.for_revocations, actor, rule=body.rule, reason=body.reason)
        )

    @routes.get("/tenants/{tenant_id}/sign-in", summary="What sign-ins of an organisation must prove")
    async def get_rule(actor: Annotated[Actor, auth], tenant_id: UUID) -> RuleOut:
        return RuleOut.model_validate(await sign_in_rules.get_rule(deps.database, actor, tenant_id=tenant_id))

    @routes.put("/tenants/{tenant_id}/sign-in", summary="Set what sign-ins of an organisation must prove")
    async def set_rule(actor: Annotated[Actor, auth], tenant_id: UUID, body: RuleSet) -> RuleOut:
        """Sessions and tokens of its people that were proved by less end."""
        return RuleOut.model_validate(
            await sign_in_rules.set_rule(
                deps.for_revocations, actor, tenant_id=tenant_id, rule=body.rule, reason=body.reason
            )
        )

    return routes
