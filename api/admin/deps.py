"""What every admin route needs: the backing services, the bearer token turned into an Actor, and lists in pages."""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Generic, Protocol, TypeVar
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict, Field, field_validator
from redis.asyncio import Redis
from starlette.exceptions import HTTPException
from starlette.types import Message

from admin.actor import Actor
from admin.logins import authenticate_token
from api.errors import body_too_large
from core.db import Database
from core.errors import AuthenticationFailed, InvalidRequest, PermissionDenied, Unavailable
from core.settings import Settings
from scheduler.client import SchedulerClient
from tenants.changes import announce
from tenants.keys import DATABASE_AWAY

PREFIX = "/admin/v1"
MAX_BODY_BYTES = 64 * 1024

_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="Admin token",
    description="`Authorization: Bearer pen_admin_...`: a token of a platform admin or of finance, made in the "
    "console or with `penstock users token`.",
)


class ErrorDetail(BaseModel):
    """What went wrong, for people (`message`) and programs (`code`)."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorOut(BaseModel):
    """Every error's body, in OpenAI's shape."""

    error: ErrorDetail


_ERROR_DESCRIPTIONS = {
    400: "The body or a parameter has the wrong shape or value.",
    401: "No admin token, or one that is malformed, unknown or revoked.",
    403: "The token's role may not do this.",
    404: "No such object.",
    409: "The state of things forbids it, such as a name that is taken.",
    413: "The body is larger than any of ours needs to be.",
}

ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorOut, "description": text} for status, text in _ERROR_DESCRIPTIONS.items()
}
"""For `responses=` of the routers."""


class SizeLimitedRoute(APIRoute):
    """A route that stops reading a body beyond MAX_BODY_BYTES, refuses NUL in the address, and says so our way.

    FastAPI reads any length by default, before it looks at the token; its own cap answers in plain text.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The route's handler behind a counting `receive`."""
        handle = super().get_route_handler()

        async def capped(request: Request) -> Response:
            if b"%00" in request.scope["query_string"] or "\x00" in request.scope["path"]:
                raise InvalidRequest("the address contains a NUL character")
            received = 0

            async def receive() -> Message:
                nonlocal received
                message = await request.receive()
                received += len(message.get("body", b""))
                if received > MAX_BODY_BYTES:
                    raise body_too_large(MAX_BODY_BYTES)
                return message

            try:
                return await handle(Request(request.scope, receive))
            except HTTPException:  # FastAPI calls whatever happens while it reads a body a parsing error
                if received > MAX_BODY_BYTES:
                    raise body_too_large(MAX_BODY_BYTES) from None
                raise

        return capped


class RequestBody(BaseModel):
    """Base of all request bodies: a field we do not know is refused, never ignored."""

    model_config = ConfigDict(extra="forbid")

    @field_validator("*", mode="after")
    @classmethod
    def _no_nul(cls, value: Any) -> Any:
        """PostgreSQL stores no NUL; refused here for every text, bare or in a list."""
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
    """Base of all answers, read from the views that admin/ returns."""

    model_config = ConfigDict(from_attributes=True)


class Identified(Protocol):
    """A view with an id."""

    @property
    def id(self) -> UUID:
        """Time-ordered, so lists continue after it."""


ResponseT = TypeVar("ResponseT", bound=ResponseModel)


class Page(BaseModel, Generic[ResponseT]):
    """A part of a list. Ask again with `after` = `next` while `has_more`."""

    data: list[ResponseT]
    has_more: bool
    next: UUID | None = Field(description="The id to pass as `after` for the next page; null at the end.")


Limit = Annotated[int, Query(ge=1, le=500, description="Rows of a page.")]
After = Annotated[
    UUID | None, Query(description="Continue after the row with this id (`next` of the last page).")
]


def to_page(rows: Sequence[Identified], limit: int, out: type[ResponseT]) -> Page[ResponseT]:
    """A page of `limit` rows out of a list that was asked for one more."""
    shown = rows[:limit]
    more = len(rows) > limit
    return Page[ResponseT](
        data=[out.model_validate(row) for row in shown], has_more=more, next=shown[-1].id if more else None
    )


@dataclass(frozen=True)
class AdminDeps:
    """The services behind the admin REST. Making one connects the database's changes with Redis hints."""

    database: Database
    redis: "Redis | None"
    pepper: bytes
    scheduler: SchedulerClient | None = None
    settings: Settings = field(default_factory=Settings.model_construct)

    def __post_init__(self) -> None:
        if self.redis is not None:
            self.database.after_change = partial(announce, self.redis)

    async def actor(
        self, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)] = None
    ) -> Actor:
        """The dependency of every admin route: 401 without a good token, 403 for a role of an organisation."""
        if credentials is None:
            raise AuthenticationFailed(
                "This needs an admin token: send `Authorization: Bearer pen_admin_...`.",
                code="missing_admin_token",
            )
        try:
            actor = await authenticate_token(self.database, credentials.credentials, pepper=self.pepper)
        except DATABASE_AWAY as error:
            raise Unavailable(
                "The admin token cannot be checked at the moment. Try again shortly.", retry_after_s=1.0
            ) from error
        if not actor.is_platform:
            raise PermissionDenied(
                f"The admin REST is for the platform's own people; {actor.label} has the role {actor.role}. "
                "Use the console."
            )
        return actor

    def router(self, tag: str) -> APIRouter:
        """An empty router under /admin/v1: every route demands a platform token and reads bodies up to a cap."""
        return APIRouter(
            prefix=PREFIX,
            tags=[f"admin: {tag}"],
            dependencies=[Depends(self.actor)],
            responses=ERROR_RESPONSES,
            route_class=SizeLimitedRoute,
        )
