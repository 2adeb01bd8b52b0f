"""Shared parts of the admin routes: services, authentication, request and response models, and pages of lists."""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Annotated, Any, Generic, Literal, Protocol, TypeVar
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict, Field, field_validator
from redis.asyncio import Redis
from starlette.exceptions import HTTPException
from starlette.types import Message

from admin.actor import Actor, require_scope
from admin.denials import record_denial
from admin.logins import authenticate_token
from api.errors import body_too_large
from core.client_address import ClientAddresses
from core.db import Database
from core.errors import AuthenticationFailed, InvalidRequest, PenstockError, PermissionDenied, Unavailable
from core.settings import Settings
from scheduler.client import SchedulerClient
from tenants.changes import announce
from tenants.key_format import has_tag, secret_kind
from tenants.keys import DATABASE_ERRORS

PREFIX = "/admin/v1"
READING_METHODS = ("GET", "HEAD")
"""Methods for which a token with the scope `read` suffices."""
MAX_BODY_BYTES = 64 * 1024
"""Bytes of a request's body."""

_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="Admin token",
    description="`Authorization: Bearer pen_admin_...`: a token of a platform admin or of finance, made in the "
    "console or with `penstock users token`.",
)


class ErrorDetail(BaseModel):
    """An error: `message` is for people, `code` for programs."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorOut(BaseModel):
    """The body of an error, in OpenAI's shape."""

    error: ErrorDetail


_ERROR_DESCRIPTIONS = {
    400: "The body or a parameter has the wrong shape or value.",
    401: "No admin token, or one that is malformed, unknown or revoked.",
    403: "The token's role may not do this.",
    404: "The object does not exist.",
    409: "The current state forbids it, such as a name that is taken.",
    413: "The body is too large.",
}

ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorOut, "description": text} for status, text in _ERROR_DESCRIPTIONS.items()
}
"""The argument `responses` of routers."""


class WaitingOut(BaseModel):
    """An act above the approval limit. It takes effect when another person approves it."""

    status: Literal["waiting"]
    approval_id: UUID
    kind: str
    message: str
    warning: str | None = None


WAITS: dict[int | str, dict[str, Any]] = {
    202: {
        "model": WaitingOut,
        "description": "Stored: another person must approve it. Nothing is changed yet.",
    }
}
"""The argument `responses` of routes whose act is under the approval limit."""


class SizeLimitedRoute(APIRoute):
    """A route that refuses bodies of more than `max_body_bytes` and NUL characters in the URL.

    By default FastAPI reads bodies of any size before it checks the token.
    """

    max_body_bytes = MAX_BODY_BYTES

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the route's handler with a `receive` that counts bytes."""
        handle = super().get_route_handler()

        async def capped(request: Request) -> Response:
            if b"%00" in request.scope["query_string"] or "\x00" in request.scope["path"]:
                raise InvalidRequest("the address contains a NUL character")
            received = 0

            async def receive() -> Message:
                nonlocal received
                message = await request.receive()
                received += len(message.get("body", b""))
                if received > self.max_body_bytes:
                    raise body_too_large(self.max_body_bytes)
                return message

            try:
                return await handle(Request(request.scope, receive))
            except HTTPException:  # FastAPI turns every exception while it reads a body into a parsing error
                if received > self.max_body_bytes:
                    raise body_too_large(self.max_body_bytes) from None
                raise

        return capped


class RequestBody(BaseModel):
    """Base of request bodies. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")

    @field_validator("*", mode="after")
    @classmethod
    def _no_nul(cls, value: Any) -> Any:
        """Refuse NUL characters in texts and lists of texts, since PostgreSQL cannot store them."""
        texts = value if isinstance(value, list) else [value]
        if any(isinstance(text, str) and "\x00" in text for text in texts):
            raise ValueError("the text contains a NUL character")
        return value


Reason = Annotated[str, Field(min_length=1, max_length=500, examples=["Card charge disputed, case 4711"])]


class ReasonBody(RequestBody):
    """Why the act is done. The reason is written into the audit log."""

    reason: Reason


class OptionalReasonBody(RequestBody):
    """Why the act is done, when there is something to say. The reason is written into the audit log."""

    reason: Reason | None = None


NO_REASON = OptionalReasonBody()
"""The default of an optional body."""


class Decision(RequestBody):
    """A second person's decision about something that needs approval."""

    approve: bool
    reason: Reason | None = None


class ResponseModel(BaseModel):
    """Base of response bodies, which are read from the views that admin/ returns."""

    model_config = ConfigDict(from_attributes=True)


class Identified(Protocol):
    """A view with an id."""

    @property
    def id(self) -> UUID:
        """The id, ordered by time, after which the next page begins."""


ResponseT = TypeVar("ResponseT", bound=ResponseModel)


class Page(BaseModel, Generic[ResponseT]):
    """A page of a list. While `has_more`, the next page begins after the id `next`."""

    data: list[ResponseT]
    has_more: bool
    next: UUID | None = Field(description="The id to pass as `after` for the next page; null at the end.")


Limit = Annotated[int, Query(ge=1, le=500, description="Rows of a page.")]
MonthFilter = Annotated[str | None, Query(max_length=7, description="A month such as 2026-11.")]
After = Annotated[
    UUID | None, Query(description="Continue after the row with this id (`next` of the last page).")
]


def to_page(rows: Sequence[Identified], limit: int, out: type[ResponseT]) -> Page[ResponseT]:
    """Return a page of `limit` rows from a list that was read with `limit` + 1."""
    shown = rows[:limit]
    more = len(rows) > limit
    return Page[ResponseT](
        data=[out.model_validate(row) for row in shown], has_more=more, next=shown[-1].id if more else None
    )


@dataclass(frozen=True)
class Acting:
    """Who acts in a request, from which address, and where it is recorded that the act was refused."""

    database: Database
    actor: Actor
    address: str

    async def refused(self, request: Request, error: PenstockError) -> None:
        """Record the refusal of a request, if it is a denial."""
        try:
            tenant_id = UUID(request.path_params.get("tenant_id", ""))
        except ValueError:
            tenant_id = None
        act = f"{request.method} {request.scope['route'].path}"
        await record_denial(self.database, self.actor, act, error, tenant_id=tenant_id, address=self.address)


@dataclass(frozen=True)
class AdminDeps:
    """The services of the admin API. Creating one makes its databases announce changes through Redis.

    `revocations`, `customers` and `exports` are pools for these purposes (api/pools.py); `database` serves the rest,
    and those that are not given.
    """

    database: Database
    redis: "Redis | None"
    pepper: bytes
    scheduler: SchedulerClient | None = None
    settings: Settings = field(default_factory=Settings.model_construct)
    revocations: Database | None = None
    customers: Database | None = None
    exports: Database | None = None

    def __post_init__(self) -> None:
        if self.redis is not None:
            for database in (self.database, self.for_revocations, self.for_customers):
                database.after_change = partial(announce, self.redis)

    @cached_property
    def _addresses(self) -> ClientAddresses:
        return ClientAddresses(self.settings.trusted_proxies)

    @property
    def for_revocations(self) -> Database:
        """For acts that revoke a key or suspend an organisation, and for checks of admin tokens."""
        return self.revocations or self.database

    async def person_of(self, token: str, request: Request) -> Actor:
        """Return the owner of an admin token for a request, whose refusal is recorded as that person's from then on.

        Raises AuthenticationFailed, Unavailable, or PermissionDenied for a method that the token's scopes do not cover.
        Only a token with this platform's tag, which cannot be made up, is looked up on the connections of revocations.
        """
        made_here = secret_kind(token) == "admin" and has_tag(token, self.pepper)
        try:
            actor = await authenticate_token(
                self.for_revocations if made_here else self.database, token, pepper=self.pepper
            )
        except DATABASE_ERRORS as error:
            raise Unavailable(
                "The admin token cannot be checked at the moment. Try again shortly.", retry_after_s=1.0
            ) from error
        request.state.acting = Acting(self.database, actor, self._addresses.of(request.scope))
        require_scope(actor, "read" if request.method in READING_METHODS else "write")
        return actor

    @property
    def for_customers(self) -> Database:
        """For what customers read, and what members change in their own organisation."""
        return self.customers or self.database

    @property
    def for_exports(self) -> Database:
        """For reports and downloads."""
        return self.exports or self.database

    async def actor(
        self,
        request: Request,
        credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)] = None,
    ) -> Actor:
        """Return the owner of the admin token: the dependency of every admin route.

        Raises AuthenticationFailed without a valid token, PermissionDenied for a role of an organisation, and
        Unavailable.
        """
        if credentials is None:
            raise AuthenticationFailed(
                "This needs an admin token: send `Authorization: Bearer pen_admin_...`.",
                code="missing_admin_token",
            )
        actor = await self.person_of(credentials.credentials, request)
        if not actor.is_platform:
            raise PermissionDenied(
                f"The admin REST is for the platform's own people; {actor.label} has the role {actor.role}. "
                "Use the console."
            )
        return actor

    def router(self, tag: str) -> APIRouter:
        """Return an empty router under /admin/v1, whose routes need a platform token and bound bodies."""
        return APIRouter(
            prefix=PREFIX,
            tags=[f"admin: {tag}"],
            dependencies=[Depends(self.actor)],
            responses=ERROR_RESPONSES,
            route_class=SizeLimitedRoute,
        )
