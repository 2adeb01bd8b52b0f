"""Admin API: users and their tokens."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from fastapi import APIRouter, Depends, Query, Response
from pydantic import Field

from admin import access_review, second_factor
from admin import logins as admin_logins
from admin import sessions as admin_sessions
from admin import users as admin_users
from admin.access_review import ReviewFormat
from admin.actor import Actor, user_id_of
from admin.logins import TokenLives
from api.admin.deps import (
    NO_REASON,
    AdminDeps,
    After,
    Limit,
    OptionalReasonBody,
    Page,
    RequestBody,
    ResponseModel,
    to_page,
)
from tenants.names import PASSWORD_MAX_LENGTH, PASSWORD_MIN_LENGTH
from tenants.proofs import Proof
from tenants.roles import Role
from tenants.token_scopes import ALL_SCOPES, DEFAULT_SCOPES, Scope
from tenants.views import TokenView

Password = Annotated[str, Field(min_length=PASSWORD_MIN_LENGTH, max_length=PASSWORD_MAX_LENGTH)]


class UserOut(ResponseModel):
    """A user and the role of that user."""

    id: UUID
    email: str
    status: Literal["active", "disabled"]
    role: Role
    tenant_id: UUID | None = Field(description="null = a user of the platform.")
    tenant: str | None = Field(description="The organisation's name.")
    created_at: datetime
    second_factor: bool = Field(description="Whether sign-ins ask for a code of a second factor.")


class TokenOut(ResponseModel):
    """An admin token without its secret."""

    id: UUID
    user_id: UUID
    name: str
    last4: str
    scopes: list[Scope] = Field(description="What the token may do at most: each includes those before it.")
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None
    last_used_at: datetime | None = Field(description="To the minute; null = never.")
    proved_by: Proof = Field(description="How the person who made it had signed in.")


class SessionOut(ResponseModel):
    """An open session of the console or over REST."""

    id: UUID
    user_id: UUID
    kind: Literal["session", "console"] = Field(description="`session`: over REST.")
    address: str = Field(description="Network address from which it was opened; empty = not known.")
    client: str = Field(description="The program that opened it, as it names itself.")
    created_at: datetime
    expires_at: datetime
    last_used_at: datetime | None = Field(description="To the minute; null = not since it was opened.")
    proved_by: Proof = Field(description="How the person signed in.")
    current: bool = Field(description="Whether this request came by it.")


class CreatedTokenOut(TokenOut):
    """A new token. Its secret is returned only in this response."""

    secret: str


class UserCreate(RequestBody):
    """A user to create: with a role of an organisation and its id, or with a role of the platform."""

    email: str = Field(max_length=254, examples=["ada@example.com"])
    password: Password
    role: Role
    tenant_id: UUID | None = None


class RoleUpdate(RequestBody):
    """The new role of a user, in the same organisation or on the platform."""

    role: Role


class PasswordReset(RequestBody):
    """The new password of another user."""

    password: Password


class TokenCreate(RequestBody):
    """A token to create for oneself."""

    name: str = Field(min_length=1, max_length=100, examples=["terraform"])
    scopes: list[Scope] = Field(
        default=list(DEFAULT_SCOPES),
        min_length=1,
        max_length=len(ALL_SCOPES),
        description="`read`: requests with GET; `write`: every other, except on people, invitations, passwords and "
        "tokens, which take `access`. Each includes those before it.",
    )
    days: int | None = Field(
        default=None, ge=1, description="Days until it ends; null = the platform's default, 90 unless set."
    )


def router(deps: AdminDeps) -> APIRouter:
    """Routes of users and tokens."""
    routes = deps.router("users")
    _review_route(routes, deps)
    _user_routes(routes, deps)
    _change_routes(routes, deps)
    _token_routes(routes, deps)
    _session_routes(routes, deps)
    return routes


def _review_route(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get(
        "/access-review",
        summary="Every person, token, open session and key: what it may do, and its last use",
        response_model=None,
        responses={200: {"content": {media: {} for media in access_review.MEDIA_TYPES.values()}}},
    )
    async def review(
        actor: Annotated[Actor, auth],
        tenant_id: Annotated[UUID | None, Query()] = None,
        format: Annotated[ReviewFormat, Query()] = "csv",
    ) -> Response:
        rows = await access_review.list_access(deps.for_exports, actor, tenant_id=tenant_id)
        return Response(access_review.to_file(rows, format), media_type=access_review.MEDIA_TYPES[format])


def _user_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get("/users", summary="List users, of one organisation or all")
    async def list_users(
        actor: Annotated[Actor, auth],
        tenant_id: Annotated[UUID | None, Query()] = None,
        limit: Limit = 100,
        after: After = None,
    ) -> Page[UserOut]:
        rows = await admin_users.list_users(
            deps.database, actor, tenant_id=tenant_id, limit=limit + 1, after=after
        )
        return to_page(rows, limit, UserOut)

    @routes.post("/users", status_code=201, summary="Create a user")
    async def create_user(actor: Annotated[Actor, auth], body: UserCreate) -> UserOut:
        user = await admin_users.create_user(
            deps.database,
            actor,
            email=body.email,
            password=body.password,
            role=body.role,
            tenant_id=body.tenant_id,
        )
        return UserOut.model_validate(user)

    @routes.get("/users/{user_id}", summary="Get a user")
    async def get_user(actor: Annotated[Actor, auth], user_id: UUID) -> UserOut:
        return UserOut.model_validate(await admin_users.get_user(deps.database, actor, user_id=user_id))


def _change_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.post("/users/{user_id}/role", summary="Change the role of another user")
    async def set_role(actor: Annotated[Actor, auth], user_id: UUID, body: RoleUpdate) -> UserOut:
        return UserOut.model_validate(
            await admin_users.set_role(deps.database, actor, user_id=user_id, role=body.role)
        )

    @routes.post("/users/{user_id}/password", summary="Set the password of another user")
    async def reset_password(actor: Annotated[Actor, auth], user_id: UUID, body: PasswordReset) -> UserOut:
        return UserOut.model_validate(
            await admin_users.reset_password(deps.database, actor, user_id=user_id, password=body.password)
        )

    @routes.post("/users/{user_id}/disable", summary="Disable a user, with all sessions and tokens")
    async def disable_user(actor: Annotated[Actor, auth], user_id: UUID) -> UserOut:
        return UserOut.model_validate(await admin_users.disable_user(deps.database, actor, user_id=user_id))

    @routes.post("/users/{user_id}/enable", summary="Enable a disabled user")
    async def enable_user(actor: Annotated[Actor, auth], user_id: UUID) -> UserOut:
        return UserOut.model_validate(await admin_users.enable_user(deps.database, actor, user_id=user_id))

    @routes.post(
        "/users/{user_id}/second-factor/remove", summary="Remove the second factor of a person who lost it"
    )
    async def remove_second_factor(
        actor: Annotated[Actor, auth], user_id: UUID, body: OptionalReasonBody = NO_REASON
    ) -> UserOut:
        """All sessions and tokens of the person end."""
        return UserOut.model_validate(
            await second_factor.remove_for(deps.for_revocations, actor, user_id=user_id, reason=body.reason)
        )


def _token_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get("/users/{user_id}/tokens", summary="List tokens of a user, revoked and expired ones included")
    async def list_tokens(actor: Annotated[Actor, auth], user_id: UUID) -> list[TokenOut]:
        rows = await admin_logins.list_admin_tokens(deps.database, actor, user_id=user_id)
        return [TokenOut.model_validate(row) for row in rows]

    @routes.post(
        "/tokens", status_code=201, summary="Create a token for oneself; its secret is returned only once"
    )
    async def create_token(
        actor: Annotated[Actor, auth], body: TokenCreate, response: Response
    ) -> CreatedTokenOut:
        created = await admin_logins.create_admin_token(
            deps.database,
            actor,
            pepper=deps.pepper,
            user_id=user_id_of(actor),
            name=body.name,
            scopes=body.scopes,
            days=body.days,
            lives=TokenLives.of(deps.settings),
        )
        return token_with_secret(created, response)

    @routes.post("/tokens/{token_id}/revoke", summary="Revoke a token")
    async def revoke_token(actor: Annotated[Actor, auth], token_id: UUID) -> TokenOut:
        return TokenOut.model_validate(
            await admin_logins.revoke_admin_token(deps.database, actor, token_id=token_id)
        )


def _session_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get(
        "/users/{user_id}/sessions", summary="List the open sessions of a user (oneself, or platform admins)"
    )
    async def list_sessions(actor: Annotated[Actor, auth], user_id: UUID) -> list[SessionOut]:
        return session_views(await admin_sessions.list_sessions(deps.database, actor, user_id=user_id), actor)

    @routes.post("/sessions/{session_id}/revoke", status_code=204, summary="End a session")
    async def revoke_session(actor: Annotated[Actor, auth], session_id: UUID) -> None:
        await admin_sessions.revoke_session(deps.for_revocations, actor, session_id=session_id)

    @routes.delete("/users/{user_id}/sessions", status_code=204, summary="End all sessions of a user")
    async def end_sessions(actor: Annotated[Actor, auth], user_id: UUID) -> None:
        """Tokens stay."""
        await admin_sessions.end_sessions(deps.for_revocations, actor, user_id=user_id)


def session_views(sessions: Sequence[TokenView], actor: Actor) -> list[SessionOut]:
    """Return sessions as they are shown to `actor`, who may have come by one of them."""
    current = None if actor.token is None else actor.token.id
    return [SessionOut(**msgspec.structs.asdict(each), current=each.id == current) for each in sessions]


def token_with_secret(created: admin_logins.CreatedToken, response: Response) -> CreatedTokenOut:
    """Return a new token with its secret, in a response that no cache keeps."""
    response.headers["cache-control"] = "no-store"
    view = TokenOut.model_validate(created.view)
    return CreatedTokenOut(**view.model_dump(), secret=created.secret)
