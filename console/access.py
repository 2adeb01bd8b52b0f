"""Access control of the console: transport, origin, session and role are checked before a page runs.

Every path outside OPEN_EXACT, OPEN_PREFIXES and HEALTH needs a session, and a role that its rule allows. A path
without a rule is refused. Pages read the signed-in person from `request.state.viewer`.
"""

import ipaddress
import logging
from collections.abc import Sequence
from urllib.parse import quote

from sqlalchemy.exc import SQLAlchemyError
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from console.plain import message_page
from console.sessions import SessionStore
from console.viewer import Viewer
from core.client_address import ClientAddresses
from core.cross_site import is_cross_site
from core.errors import PermissionDenied

log = logging.getLogger(__name__)

OPEN_EXACT = frozenset(
    {
        "/favicon.ico",
        "/sign-in",
        *(f"/sign-in/{step}" for step in ("code", "enrol", "provider", "callback", "link")),
    }
)
OPEN_PREFIXES = ("/static/", "/_nicegui/")
"""Static assets, which contain no data of tenants."""
HEALTH = frozenset({"/healthz", "/readyz"})
SOCKET_PREFIX = "/_nicegui_ws/"
ANY_ROLE = frozenset({"/", "/sign-out"})

POLICY = "; ".join(
    (
        "default-src 'self'",
        # NiceGUI's page contains an inline module, and Vue compiles table slots in the browser.
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data:",
        "font-src 'self' data:",
        "connect-src 'self'",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
    "cross-origin-opener-policy": "same-origin",
}


class AccessRules:
    """The roles that may open each path: (prefix, roles). A prefix covers its own path and every path below it."""

    def __init__(self, rules: Sequence[tuple[str, frozenset[str]]]) -> None:
        self._rules = sorted(rules, key=lambda rule: -len(rule[0]))

    def rule(self, path: str) -> tuple[str, frozenset[str]] | None:
        """The prefix of the rule for `path`, and the roles that may open it; None when it has no rule."""
        for prefix, roles in self._rules:
            if path == prefix or path.startswith(prefix + "/"):
                return prefix, roles
        return None

    def roles(self, path: str) -> frozenset[str] | None:
        """The roles that may open `path`; None when it has no rule."""
        found = self.rule(path)
        return None if found is None else found[1]


def cookie_name(secure: bool) -> str:
    """The session cookie's name. Behind TLS its `__Host-` prefix makes browsers require Secure and this host."""
    return "__Host-penstock_session" if secure else "penstock_session"


def is_secure(connection: HTTPConnection) -> bool:
    """Whether the browser connected with TLS, according to the trusted proxy's headers."""
    return connection.url.scheme in ("https", "wss")


class AccessMiddleware:
    """ASGI middleware around the whole console."""

    def __init__(
        self, app: ASGIApp, *, sessions: SessionStore, access: AccessRules, addresses: ClientAddresses
    ) -> None:
        self._app = app
        self._sessions = sessions
        self._access = access
        self._addresses = addresses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the connection, or pass it on with the viewer in its state."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        refusal = await self._refusal(connection)
        target = refusal or self._app
        if scope["type"] == "websocket" and refusal is not None:
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        await target(scope, receive, _with_headers(connection, send))

    async def _refusal(self, connection: HTTPConnection) -> Response | None:
        """The response that refuses the connection; None when it may continue."""
        path = connection.url.path
        if path in HEALTH:
            return None
        if not is_secure(connection) and not _from_loopback(connection):
            return PlainTextResponse("The console needs HTTPS outside this machine.\n", 403)
        if is_cross_site(connection):
            return message_page(403, "Request refused", "It came from another site.")
        if path in OPEN_EXACT or path.startswith(OPEN_PREFIXES):
            return None
        token = connection.cookies.get(cookie_name(is_secure(connection)), "")
        is_socket = path.startswith(SOCKET_PREFIX)
        try:
            if is_socket:
                return (
                    None
                    if await self._sessions.is_alive(token)
                    else PlainTextResponse("Sign in first.\n", 401)
                )
            session = await self._sessions.use(token)
        except (SQLAlchemyError, OSError):
            log.exception("a session could not be read")
            return message_page(
                503, "Console unavailable", "Sessions cannot be read right now. Try again shortly."
            )
        if session is None:
            if connection.scope.get("method") not in ("GET", "HEAD"):
                return PlainTextResponse("Sign in first.\n", 401)
            return RedirectResponse(f"/sign-in?next={quote(_local_target(connection))}", 303)
        viewer = Viewer(session, token, self._sessions, self._addresses.of(connection.scope))
        connection.scope.setdefault("state", {})["viewer"] = viewer
        if path in ANY_ROLE:
            return None
        found = self._access.rule(path)
        if found is None:
            return message_page(404, "Page not found", "There is nothing at this address.")
        prefix, roles = found
        if viewer.role not in roles:
            # The audit log names the rule: the rest of a path is what a client, or a link of somewhere else, says.
            await viewer.refused(prefix, PermissionDenied(f"the role {viewer.role} may not open {prefix}"))
            return message_page(
                403,
                "Not for your role",
                "Your account may not open this page. Ask an administrator for access.",
            )
        return None


def _local_target(connection: HTTPConnection) -> str:
    query = connection.url.query
    return connection.url.path + (f"?{query}" if query else "")


def _from_loopback(connection: HTTPConnection) -> bool:
    host = connection.client.host if connection.client else ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _with_headers(connection: HTTPConnection, send: Send) -> Send:
    asset = connection.url.path.startswith(OPEN_PREFIXES)

    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            if is_secure(connection):
                headers["strict-transport-security"] = "max-age=31536000"
            if not asset:
                headers["cache-control"] = "no-store"
        await send(message)

    return wrapped
