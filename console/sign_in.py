"""Sign-in and sign-out: plain pages, which need no session. A second factor is the second step of the form."""

import logging
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qs

from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy.exc import SQLAlchemyError

from admin import sign_in_tickets
from admin.factor_codes import GivenCode
from admin.logins import RightPassword, SignIn, check_password, complete
from admin.oidc_sign_in import offered
from admin.second_factor import Enrolment, begin_enrolment, confirm_enrolment
from admin.sign_in_attempts import count_attempt
from console.access import cookie_name, is_secure
from console.deps import Console
from console.oidc import ProviderSteps
from console.oidc import cookie_name as oidc_cookie
from console.plain import (
    backup_codes_page,
    code_page,
    enrol_page,
    message_page,
    provider_page,
    sign_in_page,
)
from console.viewer import Viewer
from core.errors import (
    AuthenticationFailed,
    InvalidRequest,
    PenstockError,
    RateLimited,
    RequestTooLarge,
    Unavailable,
)
from tenants.admin_tokens import Opened

log = logging.getLogger(__name__)

MAX_FORM_BYTES = 8192
MAX_FIELDS = 8
_STATUSES: dict[type[PenstockError], int] = {RateLimited: 429, Unavailable: 503}
"""Other errors are 401."""
_WRONG = "Email or password is wrong."

Fields = dict[str, str]
Step = Callable[[Request, Fields], Awaitable[Response]]


def local_target(target: str) -> str:
    """`target` when it is a path of the console, else the start page. Prevents open redirects."""
    inside = target.startswith("/") and not target.startswith(("//", "/\\"))
    return target if inside and target.isprintable() and "\\" not in target else "/"


def add_sign_in(app: FastAPI, console: Console) -> None:
    """Register the pages of sign-in and sign-out."""
    steps = _Steps(console)

    @app.get("/")
    async def start(request: Request) -> Response:
        """Redirect to the first page of the viewer's role."""
        viewer: Viewer = request.state.viewer
        return RedirectResponse("/overview" if viewer.is_platform else "/home", 303)

    @app.get("/sign-in")
    async def form(request: Request) -> Response:
        """The sign-in form."""
        return await steps.form(target=local_target(request.query_params.get("next", "/")))

    @app.post("/sign-in")
    async def password(request: Request) -> Response:
        """Check e-mail address and password; start a new session, or ask for a code."""
        return await steps.answer(request, steps.password)

    @app.post("/sign-in/code")
    async def code(request: Request) -> Response:
        """Check the code of the second factor, and start a new session."""
        return await steps.answer(request, steps.code)

    @app.post("/sign-in/enrol")
    async def enrol(request: Request) -> Response:
        """Enrol the second factor that the person must have, and start a new session."""
        return await steps.answer(request, steps.enrol)

    _add_providers(app, steps)

    @app.post("/sign-out")
    async def sign_out(request: Request) -> Response:
        """End the session."""
        name = cookie_name(is_secure(request))
        await console.sessions.end(request.cookies.get(name, ""))
        response = RedirectResponse("/sign-in", 303)
        response.delete_cookie(name, path="/", secure=is_secure(request), httponly=True, samesite="lax")
        response.headers["clear-site-data"] = '"cache"'
        return response


def _add_providers(app: FastAPI, steps: "_Steps") -> None:
    @app.get("/sign-in/provider")
    async def provider_form(request: Request) -> Response:
        """The form that asks for a mail address."""
        return provider_page(target=local_target(request.query_params.get("next", "/")))

    @app.post("/sign-in/provider")
    async def provider(request: Request) -> Response:
        """Go on to the identity provider of a mail address."""
        return await steps.answer(request, steps.leave)

    @app.get("/sign-in/callback")
    async def callback(request: Request) -> Response:
        """Back from the identity provider."""
        return await steps.answer(request, steps.come_back)

    @app.post("/sign-in/link")
    async def link(request: Request) -> Response:
        """Link an account by its password, and start a new session."""
        return await steps.answer(request, steps.link)


async def _fields(request: Request) -> Fields:
    """The first value of each field of the form. Raises RequestTooLarge, InvalidRequest."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM_BYTES:
            raise RequestTooLarge("The form is larger than a sign-in can be.")
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=MAX_FIELDS)
    except ValueError:
        raise InvalidRequest(f"The form has more than {MAX_FIELDS} fields.") from None
    return {name: values[0] for name, values in fields.items()}


def _target(fields: Fields) -> str:
    return local_target(fields.get("next", "/"))


class _Steps:
    """The steps of the form."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._providers = ProviderSteps(console)

    def _address(self, request: Request) -> str:
        """The network address by which attempts are counted."""
        return self._console.addresses.of(request.scope) or "unknown"

    async def answer(self, request: Request, step: Step) -> Response:
        """Read the form and do `step`; its errors become pages."""
        fields: Fields = {}
        try:
            fields = await _fields(request)
            return await step(request, fields)
        except RequestTooLarge as error:
            return message_page(413, "Request too large", error.message)
        except InvalidRequest as error:
            return message_page(400, "Invalid request", error.message)
        except (SQLAlchemyError, OSError):
            log.exception("a session could not be opened")
            return message_page(
                503, "Console unavailable", "Sessions cannot be kept right now. Try again shortly."
            )
        except PenstockError as error:
            status = _STATUSES.get(type(error), 401)
            return await self.form(
                status=status, error=error.message, email=fields.get("email", ""), target=_target(fields)
            )

    async def form(
        self, *, status: int = 200, error: str = "", email: str = "", target: str = ""
    ) -> Response:
        """The first form; it offers identity providers when there are any."""
        try:
            providers = await offered(self._console.database)
        except (SQLAlchemyError, OSError):
            providers = False
        return sign_in_page(status=status, error=error, email=email, target=target, providers=providers)

    async def leave(self, request: Request, fields: Fields) -> Response:
        """Go on to the identity provider. Raises AuthenticationFailed, Unavailable."""
        email = fields.get("email", "")[:254]
        return await self._providers.leave(request, email, _target(fields), self._address(request))

    async def come_back(self, request: Request, fields: Fields) -> Response:
        """Sign in whom the identity provider names. Raises AuthenticationFailed, Unavailable, PermissionDenied."""
        found, target = await self._providers.come_back(request, self._address(request))
        page: Response
        if isinstance(found, SignIn):
            page = await self._opened(request, {"next": target}, found)
        else:
            page = found
        secure = is_secure(request)
        page.delete_cookie(oidc_cookie(secure), path="/", secure=secure, httponly=True, samesite="lax")
        return page

    async def link(self, request: Request, fields: Fields) -> Response:
        """Link the account whose password was given. Raises AuthenticationFailed, RateLimited, Conflict."""
        found = await self._providers.link(
            fields.get("ticket", ""),
            fields.get("password", "")[:1024],
            fields.get("code", "")[:64],
            _target(fields),
            self._address(request),
        )
        return await self._opened(request, fields, found) if isinstance(found, SignIn) else found

    async def password(self, request: Request, fields: Fields) -> Response:
        """Check e-mail address and password. Raises RateLimited, AuthenticationFailed."""
        email, password = fields.get("email", "")[:254], fields.get("password", "")[:1024]
        database, address = self._console.database, self._address(request)
        right = await check_password(database, email, password, address=address)
        if right is None:
            raise AuthenticationFailed(_WRONG)
        if right.needs_code:
            return self._ask_code(right, fields)
        if right.must_enrol:
            made = await begin_enrolment(database, right, pepper=self._console.key_pepper, address=address)
            return self._show_enrolment(right, made, fields)
        return await self._opened(request, fields, await complete(database, right, address=address))

    async def code(self, request: Request, fields: Fields) -> Response:
        """Check the code after a right password. Raises RateLimited, AuthenticationFailed."""
        now, pepper = self._console.clock.now(), self._console.key_pepper
        right = sign_in_tickets.read(fields.get("ticket", ""), pepper, now).right
        address = self._address(request)
        await count_attempt(self._console.database, right.email, address)
        try:
            given = GivenCode(fields.get("code", "")[:64], pepper, now)
            signed_in = await complete(self._console.database, right, address=address, code=given)
        except AuthenticationFailed as error:
            return self._ask_code(right, fields, error.message)
        return await self._opened(request, fields, signed_in)

    async def enrol(self, request: Request, fields: Fields) -> Response:
        """Check the first code of a person who must enrol; show the backup codes beside the new session."""
        now, pepper = self._console.clock.now(), self._console.key_pepper
        ticket = sign_in_tickets.read(fields.get("ticket", ""), pepper, now)
        if ticket.enrolment is None:
            raise AuthenticationFailed(_WRONG)
        address = self._address(request)
        await count_attempt(self._console.database, ticket.right.email, address)
        try:
            given = GivenCode(fields.get("code", "")[:64], pepper, now)
            done = await confirm_enrolment(self._console.database, ticket.right, given, address=address)
        except AuthenticationFailed as error:
            return self._show_enrolment(ticket.right, ticket.enrolment, fields, error.message)
        page = backup_codes_page(codes=done.backup_codes, target=_target(fields))
        return await self._opened(request, fields, done.signed_in, page)

    def _show_enrolment(
        self, right: RightPassword, made: Enrolment, fields: Fields, error: str = ""
    ) -> Response:
        ticket = sign_in_tickets.issue(right, self._console.key_pepper, self._console.clock.now(), made)
        return enrol_page(
            status=401 if error else 200, error=error, made=made, ticket=ticket, target=_target(fields)
        )

    def _ask_code(self, right: RightPassword, fields: Fields, error: str = "") -> Response:
        ticket = sign_in_tickets.issue(right, self._console.key_pepper, self._console.clock.now())
        return code_page(
            status=401 if error else 200,
            error=error,
            email=right.email,
            ticket=ticket,
            target=_target(fields),
        )

    async def _opened(
        self, request: Request, fields: Fields, signed_in: SignIn | None, page: Response | None = None
    ) -> Response:
        """A new session, in place of the one that the browser had, and the page that was asked for, or `page`.

        Raises AuthenticationFailed.
        """
        if signed_in is None:
            raise AuthenticationFailed(_WRONG)
        name = cookie_name(is_secure(request))
        if old := request.cookies.get(name):
            await self._console.sessions.end(old)
        opened = Opened(self._address(request), request.headers.get("user-agent", ""))
        token = await self._console.sessions.open(signed_in, opened)
        response = page or RedirectResponse(_target(fields), 303)
        response.set_cookie(name, token, path="/", httponly=True, samesite="lax", secure=is_secure(request))
        return response
