"""Routes of the second factor, without a token: each takes mail address and password.

So no stolen token changes how its person signs in, and a person who must enrol before the first session can.
"""

from collections.abc import Sequence
from typing import TypeVar

from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field

from admin import second_factor
from admin.factor_codes import GivenCode
from admin.logins import RightPassword, right_password, wrong_credentials
from api.admin.deps import ERROR_RESPONSES, RequestBody, ResponseModel, SizeLimitedRoute
from api.customer.member_deps import MemberDeps
from core.clock import SystemClock

T = TypeVar("T")


class Credentials(RequestBody):
    """Mail address and password."""

    email: str = Field(max_length=254)
    password: str = Field(max_length=1024)


class CredentialsAndCode(Credentials):
    """Mail address, password, and a code of the second factor or a backup code."""

    code: str = Field(min_length=1, max_length=64)


class EnrolmentOut(ResponseModel):
    """A second factor that a first code must confirm."""

    secret: str = Field(description="In base32.")
    uri: str = Field(description="The address for a QR code, `otpauth://totp/...`.")


class BackupCodesOut(ResponseModel):
    """Codes in place of the authenticator's, each of which works once; returned only in this response."""

    backup_codes: list[str]


def router(deps: MemberDeps) -> APIRouter:
    """The routes."""
    routes = APIRouter(
        prefix="/v1/second-factor",
        tags=["organization: people"],
        dependencies=[Depends(deps.same_site)],
        responses=ERROR_RESPONSES,
        route_class=SizeLimitedRoute,
    )

    @routes.post("", status_code=201, summary="Begin to enrol an authenticator app (TOTP)")
    async def begin(body: Credentials, request: Request, response: Response) -> EnrolmentOut:
        """Sign-ins take codes once `/v1/second-factor/confirm` has got one. After 5 failures: 429."""
        response.headers["cache-control"] = "no-store"
        address = deps.address_of(request)
        right = await _member(deps, body, address)
        made = await second_factor.begin_enrolment(
            deps.database, right, pepper=deps.admin.pepper, address=address
        )
        return EnrolmentOut.model_validate(made)

    @routes.post("/confirm", summary="Enrol by a first code")
    async def confirm(body: CredentialsAndCode, request: Request, response: Response) -> BackupCodesOut:
        """From now on sign-ins take a code."""
        done = await _act(deps, second_factor.confirm_enrolment, body, request)
        return _shown_once(done.backup_codes, response)

    @routes.post("/backup-codes", summary="Make new backup codes in place of all earlier ones")
    async def renew(body: CredentialsAndCode, request: Request, response: Response) -> BackupCodesOut:
        return _shown_once(await _act(deps, second_factor.renew_backup_codes, body, request), response)

    @routes.post("/disable", status_code=204, summary="Sign in with the password alone again")
    async def disable(body: CredentialsAndCode, request: Request) -> None:
        await _act(deps, second_factor.disable, body, request)

    return routes


async def _act(
    deps: MemberDeps, act: second_factor.CodeAct[T], body: CredentialsAndCode, request: Request
) -> T:
    """Do what takes password and code. Raises AuthenticationFailed, Conflict, RateLimited."""
    address = deps.address_of(request)
    right = await _member(deps, body, address)
    code = GivenCode(body.code, deps.admin.pepper, SystemClock().now())
    return await act(deps.database, right, code, address=address)


async def _member(deps: MemberDeps, body: Credentials, address: str) -> RightPassword:
    """Whose password it is: a member of an organisation. Raises AuthenticationFailed, RateLimited."""
    right = await right_password(deps.database, body.email, body.password, address=address)
    if right.tenant_id is None:  # people of the platform have no business on this address
        raise wrong_credentials()
    return right


def _shown_once(codes: Sequence[str], response: Response) -> BackupCodesOut:
    response.headers["cache-control"] = "no-store"
    return BackupCodesOut(backup_codes=list(codes))
