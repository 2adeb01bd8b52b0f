"""Members manage the people of their organisation, their own tokens and their own password."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field

from admin import identity_providers, sign_in_rules
from admin import invitations as admin_invitations
from admin import logins as admin_logins
from admin import sessions as admin_sessions
from admin import users as admin_users
from admin.actor import user_id_of
from admin.logins import TokenLives
from api.admin.deps import After, Limit, Page, RequestBody, ResponseModel, to_page
from api.admin.sign_in import ProviderOut, ProviderSet, RuleOut, RuleSet, put_provider, show_provider
from api.admin.users import (
    CreatedTokenOut,
    Password,
    RoleUpdate,
    SessionOut,
    TokenCreate,
    TokenOut,
    UserOut,
    session_views,
    token_with_secret,
)
from api.customer.member_deps import Member, MemberDeps
from billing.notifications.mail import parse_smtp
from tenants.names import PASSWORD_MAX_LENGTH


class InvitationOut(ResponseModel):
    """An invitation without its secret."""

    id: UUID
    email: str
    role: str
    invited_by: str
    status: Literal["open", "accepted", "revoked", "expired"]
    created_at: datetime
    expires_at: datetime


class InvitedOut(InvitationOut):
    """A new invitation."""

    mailed: bool
    secret: str | None = Field(
        description="To pass on to the person when no mail was sent; returned only in this response."
    )


class InvitationCreate(RequestBody):
    """Whom to invite, and with which role."""

    email: str = Field(max_length=254, examples=["ada@example.com"])
    role: Literal["tenant_owner", "tenant_developer", "tenant_viewer"]


class PasswordChange(RequestBody):
    """A new password, with the present one."""

    current: str = Field(min_length=1, max_length=PASSWORD_MAX_LENGTH)
    new: Password


def router(deps: MemberDeps) -> APIRouter:
    """Routes of people, tokens and the own password."""
    routes = deps.router("people")
    _people_routes(routes, deps)
    _invitation_routes(routes, deps)
    _token_routes(routes, deps)
    _session_routes(routes, deps)
    _rule_routes(routes, deps)
    _provider_routes(routes, deps)
    return routes


def _people_routes(routes: APIRouter, deps: MemberDeps) -> None:
    auth = Depends(deps.member)

    @routes.get("/users", summary="List the members")
    async def list_users(
        member: Annotated[Member, auth], limit: Limit = 100, after: After = None
    ) -> Page[UserOut]:
        rows = await admin_users.list_users(
            deps.database, member.actor, tenant_id=member.tenant_id, limit=limit + 1, after=after
        )
        return to_page(rows, limit, UserOut)

    @routes.get("/users/{user_id}", summary="One member")
    async def get_user(member: Annotated[Member, auth], user_id: UUID) -> UserOut:
        return UserOut.model_validate(
            await admin_users.get_user(deps.database, member.actor, user_id=user_id)
        )

    @routes.post("/users/{user_id}/role", summary="Change the role of another member (owners)")
    async def set_role(member: Annotated[Member, auth], user_id: UUID, body: RoleUpdate) -> UserOut:
        return UserOut.model_validate(
            await admin_users.set_role(deps.database, member.actor, user_id=user_id, role=body.role)
        )

    @routes.post(
        "/users/{user_id}/disable", summary="Disable another member, with all sessions and tokens (owners)"
    )
    async def disable_user(member: Annotated[Member, auth], user_id: UUID) -> UserOut:
        return UserOut.model_validate(
            await admin_users.disable_user(deps.admin.for_revocations, member.actor, user_id=user_id)
        )

    @routes.post("/users/{user_id}/enable", summary="Enable a disabled member (owners)")
    async def enable_user(member: Annotated[Member, auth], user_id: UUID) -> UserOut:
        return UserOut.model_validate(
            await admin_users.enable_user(deps.database, member.actor, user_id=user_id)
        )


def _invitation_routes(routes: APIRouter, deps: MemberDeps) -> None:
    auth = Depends(deps.member)

    @routes.get("/invitations", summary="List invitations, closed ones included")
    async def list_invitations(
        member: Annotated[Member, auth], limit: Limit = 100, after: After = None
    ) -> Page[InvitationOut]:
        rows = await admin_invitations.list_invitations(
            deps.database, member.actor, tenant_id=member.tenant_id, limit=limit + 1, after=after
        )
        return to_page(rows, limit, InvitationOut)

    @routes.post("/invitations", status_code=201, summary="Invite a person by mail (owners)")
    async def invite(
        member: Annotated[Member, auth], body: InvitationCreate, response: Response
    ) -> InvitedOut:
        settings = deps.admin.settings
        made = await admin_invitations.invite(
            deps.database,
            member.actor,
            pepper=deps.admin.pepper,
            smtp=parse_smtp(settings.smtp_url.get_secret_value(), settings.smtp_from),
            tenant_id=member.tenant_id,
            email=body.email,
            role=body.role,
        )
        response.headers["cache-control"] = "no-store"
        view = InvitationOut.model_validate(made.view)
        return InvitedOut(**view.model_dump(), mailed=made.mailed, secret=made.secret)

    @routes.post("/invitations/{invitation_id}/revoke", summary="Revoke an open invitation (owners)")
    async def revoke_invitation(member: Annotated[Member, auth], invitation_id: UUID) -> InvitationOut:
        return InvitationOut.model_validate(
            await admin_invitations.revoke_invitation(
                deps.database, member.actor, tenant_id=member.tenant_id, invitation_id=invitation_id
            )
        )


def _session_routes(routes: APIRouter, deps: MemberDeps) -> None:
    auth = Depends(deps.member)

    @routes.get("/sessions", summary="List the own open sessions")
    async def list_sessions(member: Annotated[Member, auth]) -> list[SessionOut]:
        """Those of the console and those of `POST /v1/sessions`, the newest first."""
        return await _sessions_of(deps, member, user_id_of(member.actor))

    @routes.get("/users/{user_id}/sessions", summary="List the open sessions of a member (owners)")
    async def list_member_sessions(member: Annotated[Member, auth], user_id: UUID) -> list[SessionOut]:
        return await _sessions_of(deps, member, user_id)

    @routes.post("/sessions/{session_id}/revoke", status_code=204, summary="End a session (others': owners)")
    async def revoke_session(member: Annotated[Member, auth], session_id: UUID) -> None:
        await admin_sessions.revoke_session(deps.admin.for_revocations, member.actor, session_id=session_id)

    @routes.delete("/sessions", status_code=204, summary="End all own sessions, this one included")
    async def end_sessions(member: Annotated[Member, auth]) -> None:
        """Those of the console end, too; tokens stay."""
        await admin_sessions.end_sessions(deps.admin.for_revocations, member.actor)


def _rule_routes(routes: APIRouter, deps: MemberDeps) -> None:
    auth = Depends(deps.member)

    @routes.get("/sign-in", summary="What sign-ins must prove")
    async def get_rule(member: Annotated[Member, auth]) -> RuleOut:
        return RuleOut.model_validate(
            await sign_in_rules.get_rule(deps.database, member.actor, tenant_id=member.tenant_id)
        )

    @routes.put("/sign-in", summary="Set what sign-ins must prove (owners)")
    async def set_rule(member: Annotated[Member, auth], body: RuleSet) -> RuleOut:
        """Sessions and tokens of members that were proved by less end, also the one in use."""
        return RuleOut.model_validate(
            await sign_in_rules.set_rule(
                deps.admin.for_revocations,
                member.actor,
                tenant_id=member.tenant_id,
                rule=body.rule,
                reason=body.reason,
            )
        )


def _provider_routes(routes: APIRouter, deps: MemberDeps) -> None:
    auth = Depends(deps.member)

    @routes.get("/identity-provider", summary="The identity provider; null = none (owners)")
    async def get_provider(member: Annotated[Member, auth]) -> ProviderOut | None:
        return await show_provider(deps.admin, member.actor, member.tenant_id)

    @routes.put("/identity-provider", summary="Set the identity provider (owners)")
    async def set_provider(member: Annotated[Member, auth], body: ProviderSet) -> ProviderOut:
        """A mail domain that is new is added by an admin of the platform."""
        return await put_provider(deps.admin, member.actor, member.tenant_id, body)

    @routes.delete("/identity-provider", status_code=204, summary="Remove the identity provider (owners)")
    async def remove_provider(member: Annotated[Member, auth]) -> None:
        await identity_providers.remove_provider(deps.database, member.actor, tenant_id=member.tenant_id)


async def _sessions_of(deps: MemberDeps, member: Member, user_id: UUID) -> list[SessionOut]:
    sessions = await admin_sessions.list_sessions(deps.database, member.actor, user_id=user_id)
    return session_views(sessions, member.actor)


def _token_routes(routes: APIRouter, deps: MemberDeps) -> None:
    auth = Depends(deps.member)

    @routes.get("/tokens", summary="List the own tokens, revoked and expired ones included")
    async def list_tokens(member: Annotated[Member, auth]) -> list[TokenOut]:
        rows = await admin_logins.list_admin_tokens(
            deps.database, member.actor, user_id=user_id_of(member.actor)
        )
        return [TokenOut.model_validate(row) for row in rows]

    @routes.post("/tokens", status_code=201, summary="Create an own token; its secret is returned only once")
    async def create_token(
        member: Annotated[Member, auth], body: TokenCreate, response: Response
    ) -> CreatedTokenOut:
        created = await admin_logins.create_admin_token(
            deps.database,
            member.actor,
            pepper=deps.admin.pepper,
            user_id=user_id_of(member.actor),
            name=body.name,
            scopes=body.scopes,
            days=body.days,
            lives=TokenLives.of(deps.admin.settings),
        )
        return token_with_secret(created, response)

    @routes.post("/tokens/{token_id}/revoke", summary="Revoke an own token")
    async def revoke_token(member: Annotated[Member, auth], token_id: UUID) -> TokenOut:
        return TokenOut.model_validate(
            await admin_logins.revoke_admin_token(deps.admin.for_revocations, member.actor, token_id=token_id)
        )

    @routes.post("/password", status_code=204, summary="Change the own password")
    async def change_password(
        member: Annotated[Member, auth], body: PasswordChange, request: Request
    ) -> None:
        """All sessions and tokens end, the one in use included. After 5 wrong passwords within 15 minutes: 429."""
        await admin_users.change_password(
            deps.database,
            member.actor,
            current=body.current,
            new=body.new,
            address=deps.address_of(request),
        )
