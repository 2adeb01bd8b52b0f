"""Shared parts of the routes with which members manage their own organisation, under /v1/organization."""

from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Request
from fastapi.security import HTTPAuthorizationCredentials

from admin.actor import Actor
from api.admin.deps import ERROR_RESPONSES, AdminDeps, SizeLimitedRoute
from api.customer.organization import member_actor, member_bearer
from core.client_address import ClientAddresses
from core.cross_site import is_cross_site
from core.errors import PermissionDenied
from tenants.admin_tokens import Opened

PREFIX = "/v1/organization"


@dataclass(frozen=True)
class Member:
    """A signed-in person of one organisation."""

    actor: Actor
    tenant_id: UUID


class MemberDeps:
    """The services of members' routes. `member` is their dependency."""

    def __init__(self, deps: AdminDeps) -> None:
        self.admin = deps
        self.database = deps.for_customers
        self._addresses = ClientAddresses(deps.settings.trusted_proxies)

    def address_of(self, request: Request) -> str:
        """Return the address of a request's client, by which failed passwords are counted; empty = unknown."""
        return self._addresses.of(request.scope)

    async def member(
        self,
        request: Request,
        credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(member_bearer)] = None,
    ) -> Member:
        """Return the owner of a token of an organisation.

        Raises AuthenticationFailed, Unavailable, or PermissionDenied for an API key or a person of the platform.
        """
        actor = await member_actor(self.admin, credentials, request)
        if actor.tenant_id is None:
            raise PermissionDenied(
                "This is for members of an organisation; a person of the platform uses /admin/v1."
            )
        return Member(actor, actor.tenant_id)

    async def same_site(self, request: Request) -> None:
        """Refuse what a page of another site sends: the dependency of routes that take a password.

        Raises PermissionDenied.
        """
        if is_cross_site(request):
            raise PermissionDenied(
                "This came from a page of another site; sign in from a program, or from a page of this address.",
                code="cross_site",
            )

    def opened_by(self, request: Request) -> Opened:
        """Return where the client of a request is, for the session that it opens."""
        return Opened(self.address_of(request), request.headers.get("user-agent", ""))

    def router(self, tag: str) -> APIRouter:
        """Return an empty router under /v1/organization, whose routes bound their bodies."""
        return APIRouter(
            prefix=PREFIX,
            tags=[f"organization: {tag}"],
            dependencies=[Depends(self.member)],
            responses=ERROR_RESPONSES,
            route_class=SizeLimitedRoute,
        )
