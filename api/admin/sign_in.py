"""Admin API: what sign-ins must prove, and by which identity provider, for the platform's and organisations' people."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends
from pydantic import Field

from admin import identity_providers, sign_in_rules
from admin.actor import Actor
from api.admin.deps import AdminDeps, Reason, RequestBody, ResponseModel
from core.public_addresses import parse_hosts
from tenants.roles import Role
from tenants.sign_in_rules import Rule


class RuleOut(ResponseModel):
    """What sign-ins must prove."""

    tenant_id: UUID | None = Field(description="null = the people of the platform.")
    rule: Rule = Field(
        description="`second_factor`: a password and a code; people without a second factor must enrol one. "
        "`oidc`: the identity provider, through which a person must have signed in since its last change."
    )
    ended: int = Field(description="How many sessions and tokens a change has ended.")


class RuleSet(RequestBody):
    """The new rule."""

    rule: Rule
    reason: Reason | None = None


class ProviderOut(ResponseModel):
    """An identity provider (OpenID Connect) without its client secret."""

    tenant_id: UUID | None = Field(description="null = of the people of the platform.")
    issuer: str
    client_id: str
    mail_domains: list[str] = Field(description="Mail domains of the people who sign in through it.")
    default_role: str | None = Field(
        description="Role of an account made at the first sign-in; null = people without an account are refused."
    )


class ProviderSet(RequestBody):
    """An identity provider. It must allow the redirect address `https://CONSOLE/sign-in/callback`."""

    issuer: str = Field(max_length=500, examples=["https://login.example.com"])
    client_id: str = Field(min_length=1, max_length=255)
    client_secret: str | None = Field(
        default=None,
        max_length=1000,
        description="null = the stored one. A new issuer or client id needs its own.",
    )
    mail_domains: list[str] = Field(max_length=identity_providers.MAX_DOMAINS, examples=[["example.com"]])
    default_role: Role | None = None


async def put_provider(
    deps: AdminDeps, actor: Actor, tenant_id: UUID | None, body: ProviderSet
) -> ProviderOut:
    """Set the provider of an organisation, or of the platform (None)."""
    view = await identity_providers.set_provider(
        deps.database,
        actor,
        pepper=deps.pepper,
        allow_hosts=parse_hosts(deps.settings.oidc_allow_hosts),
        tenant_id=tenant_id,
        **body.model_dump(),
    )
    return ProviderOut.model_validate(view)


async def show_provider(deps: AdminDeps, actor: Actor, tenant_id: UUID | None) -> ProviderOut | None:
    """Return the provider; None without one."""
    found = await identity_providers.get_provider(deps.database, actor, tenant_id=tenant_id)
    return None if found is None else ProviderOut.model_validate(found)


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

    _provider_routes(routes, deps)
    return routes


def _provider_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)
    tenant = "/tenants/{tenant_id}/identity-provider"

    @routes.get("/identity-provider", summary="The identity provider of the platform's people; null = none")
    async def get_platform_provider(actor: Annotated[Actor, auth]) -> ProviderOut | None:
        return await show_provider(deps, actor, None)

    @routes.put("/identity-provider", summary="Set the identity provider of the platform's people")
    async def set_platform_provider(actor: Annotated[Actor, auth], body: ProviderSet) -> ProviderOut:
        return await put_provider(deps, actor, None, body)

    @routes.delete(
        "/identity-provider", status_code=204, summary="Remove the identity provider of the platform's people"
    )
    async def remove_platform_provider(actor: Annotated[Actor, auth]) -> None:
        await identity_providers.remove_provider(deps.database, actor)

    @routes.get(tenant, summary="The identity provider of an organisation; null = none")
    async def get_provider(actor: Annotated[Actor, auth], tenant_id: UUID) -> ProviderOut | None:
        return await show_provider(deps, actor, tenant_id)

    @routes.put(tenant, summary="Set the identity provider of an organisation")
    async def set_provider(actor: Annotated[Actor, auth], tenant_id: UUID, body: ProviderSet) -> ProviderOut:
        return await put_provider(deps, actor, tenant_id, body)

    @routes.delete(tenant, status_code=204, summary="Remove the identity provider of an organisation")
    async def remove_provider(actor: Annotated[Actor, auth], tenant_id: UUID) -> None:
        await identity_providers.remove_provider(deps.database, actor, tenant_id=tenant_id)
