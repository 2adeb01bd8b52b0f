"""Routes without a token: sign in with a password, and join an organisation by an invitation."""

from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field

from admin import invitations as admin_invitations
from admin import sessions as admin_sessions
from api.admin.deps import ERROR_RESPONSES, RequestBody, SizeLimitedRoute
from api.admin.users import CreatedTokenOut, Password, UserOut, token_with_secret
from api.customer.member_deps import MemberDeps


class SignIn(RequestBody):
    """The credentials of a member."""

    email: str = Field(max_length=254)
    password: str = Field(max_length=1024)
    code: str = Field(
        default="",
        max_length=64,
        description="A code of the second factor, or a backup code, where there is one.",
    )


class Acceptance(RequestBody):
    """An invitation's secret, and the new member's password."""

    secret: str = Field(min_length=1, max_length=200)
    password: Password


def router(deps: MemberDeps) -> APIRouter:
    """The routes of sessions and of accepted invitations."""
    routes = APIRouter(
        prefix="/v1",
        tags=["organization: people"],
        dependencies=[Depends(deps.same_site)],
        responses=ERROR_RESPONSES,
        route_class=SizeLimitedRoute,
    )

    @routes.post(
        "/sessions", status_code=201, summary="Sign in: a token of 12 hours, returned only in this response"
    )
    async def sign_in(body: SignIn, request: Request, response: Response) -> CreatedTokenOut:
        """After 5 failures within 15 minutes the route answers 429.

        401 has the code `second_factor_required` where the password is right and a code is missing.
        """
        created = await admin_sessions.open_session(
            deps.database,
            pepper=deps.admin.pepper,
            email=body.email,
            password=body.password,
            code=body.code,
            opened=deps.opened_by(request),
        )
        return token_with_secret(created, response)

    @routes.post("/invitations/accept", status_code=201, summary="Join an organisation by an invitation")
    async def accept(body: Acceptance, request: Request) -> UserOut:
        return UserOut.model_validate(
            await admin_invitations.accept(
                deps.database,
                pepper=deps.admin.pepper,
                secret=body.secret,
                password=body.password,
                address=deps.address_of(request),
            )
        )

    return routes
