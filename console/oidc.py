"""Signing in by an identity provider: to it, back from it, and the password that links an account once."""

import hmac
from datetime import datetime, timedelta
from uuid import UUID

import msgspec
from fastapi import Request, Response
from fastapi.responses import HTMLResponse

from admin import oidc_client, oidc_sign_in
from admin.factor_codes import GivenCode
from admin.logins import SignIn
from admin.oidc_client import Asked
from admin.oidc_sign_in import Unlinked
from admin.sign_in_attempts import clear_attempts, count_attempt
from console.access import is_secure
from console.deps import Console
from console.plain import leave_page, link_page
from core.errors import AuthenticationFailed, Unavailable
from core.public_addresses import parse_hosts
from tenants.sealed import seal_text, unseal_text

LIFE = timedelta(minutes=10)
"""How long a sign-in may take at the provider, or for the password."""
CALLBACK = "/sign-in/callback"
_SENT, _LINKING = "oidc state", "oidc link"
"""Purposes of what is sealed."""


class Sent(msgspec.Struct, frozen=True):
    """What the browser keeps while it is at the provider."""

    provider_id: str
    asked: Asked
    target: str
    ends_at: datetime


class Linking(msgspec.Struct, frozen=True):
    """What the form of the password keeps."""

    unlinked: Unlinked
    ends_at: datetime


def cookie_name(secure: bool) -> str:
    """The name of the cookie that keeps `Sent`."""
    return "__Host-penstock_oidc" if secure else "penstock_oidc"


def _counted(address: str) -> str:
    """Under what the steps from a network address are counted."""
    return f"identity provider from {address}"


class ProviderSteps:
    """The steps by way of an identity provider."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._allow = parse_hosts(console.settings.oidc_allow_hosts)

    async def leave(self, request: Request, email: str, target: str, address: str) -> Response:
        """Send the browser to the provider of a mail address. Raises AuthenticationFailed, RateLimited, Unavailable."""
        await self._count(address)
        provider = await oidc_sign_in.provider_of(self._console.database, email)
        client = oidc_sign_in.client_of(provider, self._console.key_pepper, self._allow)
        back = str(request.base_url).rstrip("/") + CALLBACK
        address, asked = await oidc_client.begin(client, back, login_hint=email)
        sent = Sent(str(provider.id), asked, target, self._console.clock.now() + LIFE)
        # A page, not a redirect: browsers hold redirects of a form to its page's `form-action`.
        response = leave_page(address=address, issuer=provider.issuer)
        response.set_cookie(
            cookie_name(is_secure(request)),
            seal_text(self._console.key_pepper, _SENT, sent),
            max_age=int(LIFE.total_seconds()),
            path="/",
            httponly=True,
            samesite="lax",
            secure=is_secure(request),
        )
        return response

    async def come_back(self, request: Request, address: str) -> tuple[SignIn | HTMLResponse, str]:
        """Who came back, and to which page: signed in, or the form that links the account.

        Raises AuthenticationFailed, RateLimited, Unavailable, PermissionDenied.
        """
        sent = self._sent(request)
        await self._count(address)
        if error := request.query_params.get("error"):
            raise AuthenticationFailed(
                f"The identity provider refused the sign-in: {error[:100]}.", code="oidc_denied"
            )
        provider = await oidc_sign_in.get_provider(self._console.database, UUID(sent.provider_id))
        client = oidc_sign_in.client_of(provider, self._console.key_pepper, self._allow)
        identity = await oidc_client.finish(
            client,
            sent.asked,
            request.query_params.get("code", ""),
            self._console.clock.now(),
            answered_by=request.query_params.get("iss"),
        )
        found = await oidc_sign_in.sign_in_by(self._console.database, provider, identity, address=address)
        if isinstance(found, Unlinked):
            linking = Linking(found, self._console.clock.now() + LIFE)
            return self._ask_password(linking, sent.target), sent.target
        await clear_attempts(self._console.database, _counted(address), "")
        return found, sent.target

    async def _count(self, address: str) -> None:
        """Count a step that asks a provider as a failed sign-in until one succeeds: each costs the provider requests,
        which it may then refuse to all people. Raises RateLimited after too many from one address."""
        await count_attempt(self._console.database, _counted(address), "")

    async def link(
        self, ticket: str, password: str, code: str, target: str, address: str
    ) -> SignIn | HTMLResponse:
        """Link the account whose password was given; the form again when it is wrong. Raises AuthenticationFailed."""
        now, pepper = self._console.clock.now(), self._console.key_pepper
        try:
            linking = unseal_text(pepper, _LINKING, ticket, Linking)
        except Unavailable:
            raise _expired() from None
        if now > linking.ends_at:
            raise _expired()
        try:
            return await oidc_sign_in.link(
                self._console.database,
                linking.unlinked,
                password,
                code=GivenCode(code, pepper, now),
                address=address,
            )
        except AuthenticationFailed as error:
            return self._ask_password(linking, target, error.message)

    def _ask_password(self, linking: Linking, target: str, error: str = "") -> HTMLResponse:
        """The form; one that is shown again ends when the first one did."""
        unlinked = linking.unlinked
        return link_page(
            status=401 if error else 200,
            error=error,
            email=unlinked.email,
            issuer=unlinked.issuer,
            needs_code=unlinked.needs_code,
            ticket=seal_text(self._console.key_pepper, _LINKING, linking),
            target=target,
        )

    def _sent(self, request: Request) -> Sent:
        """What this browser was sent with. Raises AuthenticationFailed when it was not, or the answer is another's."""
        cookie = request.cookies.get(cookie_name(is_secure(request)), "")
        try:
            sent = unseal_text(self._console.key_pepper, _SENT, cookie, Sent)
        except Unavailable:
            raise _expired() from None
        state = request.query_params.get("state", "")
        if self._console.clock.now() > sent.ends_at or not hmac.compare_digest(
            sent.asked.state.encode(), state.encode("utf-8", "replace")
        ):
            raise _expired()
        return sent


def _expired() -> AuthenticationFailed:
    return AuthenticationFailed(
        "This answer of the identity provider belongs to no sign-in that this browser began within ten minutes. Begin "
        "again.",
        code="oidc_state",
    )
