"""OpenID Connect as a relying party: discovery, the authorization code with PKCE, and the ID token's check.

The issuer is an address that a customer names. So only https is asked, the resolved address must be public, redirects
are not followed, answers are bounded, and each request has a deadline. The operator's list of hosts allows an issuer
whose host is private, and plain HTTP on loopback. What a request met goes to the log only: a person who names an issuer
could learn from it what answers on a private network. Keys are read anew for every sign-in: there are few, and a key
that was changed works at once.
"""

import logging
import secrets
from datetime import datetime
from ipaddress import ip_address
from typing import Any, TypeVar
from urllib.parse import quote_plus, urlsplit

import aiohttp
import msgspec
from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from authlib.oidc.core import CodeIDToken
from authlib.oidc.discovery import get_well_known_url
from joserfc import jwt
from joserfc.errors import JoseError

from admin.oidc_keys import ALGORITHMS, signing_keys
from core.errors import AuthenticationFailed, InvalidRequest, Unavailable
from core.public_addresses import guarded_socket

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
"""Seconds for one request."""
MAX_ANSWER_BYTES = 256 * 1024
LEEWAY_S = 60
"""By how much the provider's clock may differ."""
SCOPE = "openid email"

T = TypeVar("T")


class Client(msgspec.Struct, frozen=True):
    """The platform as the provider knows it."""

    issuer: str
    client_id: str
    client_secret: str
    allow_hosts: frozenset[str] = frozenset()

    @property
    def own_hosts(self) -> frozenset[str]:
        """The issuer's host when the operator lists it: the issuer's metadata may name no other host of the list."""
        return self.allow_hosts & {urlsplit(self.issuer).hostname or ""}

    def __repr__(self) -> str:
        """Without the secret, so that no log can show it."""
        return f"Client(issuer={self.issuer!r}, client_id={self.client_id!r})"


class Asked(msgspec.Struct, frozen=True):
    """What was sent to the provider, and must come back."""

    state: str
    nonce: str
    verifier: str
    redirect_uri: str

    def __repr__(self) -> str:
        """Without the secrets, so that no log can show them."""
        return "Asked()"


class Identity(msgspec.Struct, frozen=True):
    """Whom the provider names."""

    issuer: str
    subject: str
    email: str
    email_verified: bool


class _Discovered(msgspec.Struct, frozen=True):
    """The part of the provider's metadata that is used."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str = ""
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class _Tokens(msgspec.Struct, frozen=True):
    id_token: str
    access_token: str = ""


def check_issuer(issuer: str, allow_hosts: frozenset[str]) -> str:
    """`issuer` when it may be asked. Raises InvalidRequest."""
    problem = _problem(issuer, allow_hosts)
    if problem is None and urlsplit(issuer).query:
        problem = "must not carry a query"
    if problem is not None:
        raise InvalidRequest(f"the issuer {problem}", param="issuer")
    return issuer


async def begin(client: Client, redirect_uri: str, *, login_hint: str) -> tuple[str, Asked]:
    """The address to which the browser goes, and what must come back. Raises Unavailable."""
    found = await _discover(client)
    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    asked = Asked(state, nonce, verifier, redirect_uri)
    address = prepare_grant_uri(
        found.authorization_endpoint,
        client.client_id,
        "code",
        redirect_uri,
        SCOPE,
        asked.state,
        nonce=asked.nonce,
        code_challenge=create_s256_code_challenge(asked.verifier),
        code_challenge_method="S256",
        login_hint=login_hint,
    )
    return str(address), asked


async def finish(
    client: Client, asked: Asked, code: str, now: datetime, *, answered_by: str | None = None
) -> Identity:
    """Whom the provider names for its code. `answered_by`: the issuer that the answer names (RFC 9207), if it does.

    Raises Unavailable, and AuthenticationFailed for an answer of another issuer and a token that does not hold.
    """
    if answered_by not in (None, client.issuer):
        raise AuthenticationFailed(
            "The answer comes from another identity provider than the one that was asked. Begin again.",
            code="oidc_token",
        )
    found = await _discover(client)
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": asked.redirect_uri,
        "code_verifier": asked.verifier,
    }
    login = ""
    if "client_secret_basic" in found.token_endpoint_auth_methods_supported:
        login = aiohttp.encode_basic_auth(quote_plus(client.client_id), quote_plus(client.client_secret))
    else:
        form |= {"client_id": client.client_id, "client_secret": client.client_secret}
    tokens = await _ask(client, found.token_endpoint, _Tokens, form=form, authorization=login)
    claims = _claims(client, asked, tokens, await _ask(client, found.jwks_uri, dict[str, Any]), now)
    if "email" not in claims and found.userinfo_endpoint:
        info = await _ask(
            client, found.userinfo_endpoint, dict[str, Any], authorization=f"Bearer {tokens.access_token}"
        )
        if info.get("sub") != claims["sub"]:
            raise _bad_token("names another person than its user information")
        claims = info | claims
    verified = claims.get("email_verified")
    return Identity(
        client.issuer,
        str(claims["sub"]),
        str(claims.get("email", "")),
        verified is True or verified == "true",  # some providers send text
    )


def _claims(
    client: Client, asked: Asked, tokens: _Tokens, keys: dict[str, Any], now: datetime
) -> dict[str, Any]:
    """The claims of an ID token whose signature, issuer, audience, times and nonce are right."""
    try:
        token = jwt.decode(
            tokens.id_token,
            lambda found: signing_keys(keys, found.headers().get("kid")),
            algorithms=ALGORITHMS,
        )
        claims = CodeIDToken(
            token.claims,
            token.header,
            options={
                "iss": {"essential": True, "value": client.issuer},
                "aud": {"essential": True, "value": client.client_id},
            },
            params={
                "nonce": asked.nonce,
                "client_id": client.client_id,
                "access_token": tokens.access_token,
            },
        )
        claims.validate(now=int(now.timestamp()), leeway=LEEWAY_S)
    except (JoseError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise _bad_token(f"does not hold ({type(error).__name__}: {str(error)[:100]})") from None
    if not isinstance(claims["sub"], str) or not 0 < len(claims["sub"]) <= 255:
        raise _bad_token("names no subject")
    return dict(claims)


async def _discover(client: Client) -> _Discovered:
    """The provider's metadata. Raises Unavailable."""
    found = await _ask(client, get_well_known_url(client.issuer, external=True), _Discovered)
    if found.issuer != client.issuer:
        raise _unavailable(client, f"calls itself {found.issuer[:200]!r}")
    problem = _problem(found.authorization_endpoint, client.own_hosts)
    if problem is not None:
        raise _unavailable(client, f"names an authorization endpoint that {problem}")
    return found


async def _ask(
    client: Client,
    url: str,
    kind: type[T],
    *,
    form: dict[str, str] | None = None,
    authorization: str = "",
) -> T:
    """The JSON that the provider answers with. Raises Unavailable, and AuthenticationFailed for a refused code."""
    problem = _problem(url, client.own_hosts)
    if problem is not None:
        raise _unavailable(client, f"names an address that {problem}")
    allowed = urlsplit(url).hostname in client.own_hosts
    connector = aiohttp.TCPConnector(
        limit=1,
        force_close=True,
        use_dns_cache=False,
        socket_factory=None if allowed else guarded_socket,
    )
    headers = {"accept": "application/json"} | ({"authorization": authorization} if authorization else {})
    try:
        async with (
            aiohttp.ClientSession(
                connector=connector, timeout=aiohttp.ClientTimeout(total=TIMEOUT_S), trust_env=False
            ) as session,
            session.request(
                "GET" if form is None else "POST",
                url,
                data=form,
                headers=headers,
                allow_redirects=False,
            ) as answer,
        ):
            body = await answer.content.read(MAX_ANSWER_BYTES + 1)
            while len(body) <= MAX_ANSWER_BYTES and not answer.content.at_eof():
                body += await answer.content.read(MAX_ANSWER_BYTES)
    except TimeoutError:
        raise _unavailable(client, f"does not answer within {TIMEOUT_S:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise _unavailable(client, f"cannot be reached ({type(error).__name__})") from None
    if form is not None and answer.status in (400, 401, 403):
        raise AuthenticationFailed(
            "The identity provider refused its own code. Begin again; if it stays so, ask who set it up to check "
            "client id and secret.",
            code="oidc_code_refused",
        )
    if answer.status != 200 or len(body) > MAX_ANSWER_BYTES:
        raise _unavailable(client, f"answers with HTTP {answer.status} and {len(body)} bytes")
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, RecursionError):  # JSON that is nested too deeply
        raise _unavailable(client, "answers with something else than OpenID Connect says") from None


def _problem(url: str, allow_hosts: frozenset[str]) -> str | None:
    """What is wrong with an address of the provider; None = nothing."""
    if len(url) > 500 or not url.isascii() or any(c <= " " or c in "\\\x7f" for c in url):
        return "must be at most 500 ASCII characters without blanks or backslashes"
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        if not host or parts.port == 0 or parts.username is not None or parts.fragment:
            return "must look like https://login.example.com, without user and fragment"
    except ValueError:
        return "cannot be understood; it looks like https://login.example.com"
    if parts.scheme == "https":
        return None
    if parts.scheme == "http" and host in allow_hosts and _is_loopback(host):
        return None
    return "must begin with https://"


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _bad_token(what: str) -> AuthenticationFailed:
    return AuthenticationFailed(f"The identity provider's token {what}. Begin again.", code="oidc_token")


def _unavailable(client: Client, what: str) -> Unavailable:
    """The error that says no more than that it does not work; `what` goes to the log."""
    log.warning("the identity provider %s %s", client.issuer, what)
    return Unavailable(
        f"The identity provider {client.issuer} cannot be reached, or does not answer as OpenID Connect demands. Try "
        "again later; the log of the console says more.",
        code="oidc_provider_unavailable",
    )
