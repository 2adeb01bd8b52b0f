"""HTTP interface of the stand-in as plain ASGI: Stripe's API, the payment page, and the control paths under /_sim."""

import asyncio
import base64
import hmac
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

import msgspec

from sim.stripe import faults, forms, pages
from sim.stripe.account import ROUTES
from sim.stripe.control import Control
from sim.stripe.errors import Obj, StripeError
from sim.stripe.idempotency import Keys, fingerprint
from sim.stripe.params import check
from sim.stripe.routes import Route
from sim.stripe.sim import API_VERSION, Request, Sim
from sim.stripe.views import show
from sim.stripe.webhooks import WebhookSender

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_HTML = b"text/html; charset=utf-8"
_JSON = b"application/json"


class ClientDisconnected(Exception):
    """The client closed its connection."""


class Call:
    """One API request and its response."""

    def __init__(self, scope: Scope, body: bytes, id: str) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query = scope["query_string"].decode("latin-1")
        self.body = body
        self.id = id
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self.key = self.headers.get("idempotency-key", "") if self.method == "POST" else ""
        self.status = 200
        self.answer: Obj = {}
        self.extra: dict[str, str] = {}


class StripeSim:
    """The ASGI application."""

    def __init__(self, sim: Sim, sender: WebhookSender) -> None:
        self.sim = sim
        self.sender = sender
        self.keys = Keys(sim.store)
        self.released = asyncio.Event()
        self._control = Control(sim, sender, self.released)
        self._delivering: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the server's startup and shutdown."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            with suppress(ClientDisconnected):
                await self._http(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self._delivering = asyncio.create_task(self.sender.run())
            elif self._delivering is not None:
                self._delivering.cancel()
                await asyncio.gather(self._delivering, return_exceptions=True)
                self.sim.store.close()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        body = await _read(receive)
        if body is None:
            error = StripeError(f"The request is larger than {forms.MAX_BODY} bytes", status=413)
            await _reply(send, 413, msgspec.json.encode(error.body), {})
        elif path.startswith(("/v1/", "/v2/")):
            await self._api(scope, receive, send, body)
        elif path.startswith("/_sim/"):
            status, answer = await self._control.handle(scope["method"], path, scope["query_string"], body)
            self.sim.store.flush()
            await _reply(send, status, msgspec.json.encode(answer), {})
        elif path.startswith("/pay/"):
            await self._page(scope, send, body)
        elif path == "/healthz":
            await _reply(send, 200, b'{"ok":true,"simulated":true}', {})
        elif path.startswith(("/invoice/", "/receipts/", "/credit_notes/")):
            shown = pages.page(
                "Simulated document", f"<p>{path.split('/')[2]} exists only in the stand-in.</p>"
            )
            await _reply(send, 200, shown, {}, _HTML)
        else:
            shown = pages.page("Nothing here", "<p>This is Penstock's stand-in for Stripe.</p>")
            await _reply(send, 404, shown, {}, _HTML)

    async def _page(self, scope: Scope, send: Send, body: bytes) -> None:
        id = scope["path"].removeprefix("/pay/")
        headers = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
        if scope["method"] != "POST":
            status, shown = pages.show(self.sim, id)
        else:
            self.sim.request = Request()
            status, shown, target = pages.act(self.sim, id, body)
            headers |= {"Location": target} if target else {}
            self._after_request()
        await _reply(send, status, shown, headers, _HTML)

    def _after_request(self) -> None:
        """Run timers that have become due, and write changes to the journal."""
        self.sim.run_due()
        self.sim.store.flush()

    # The API

    async def _api(self, scope: Scope, receive: Receive, send: Send, body: bytes) -> None:
        call = Call(scope, body, self.sim.id("req", 14))
        rule = faults.take(self.sim.store, call.method, call.path)
        kind = rule["kind"] if rule else ""
        transport = scope.get("penstock.transport")
        if kind == "reset" and transport is not None:
            transport.abort()
            raise ClientDisconnected
        try:
            if rule and kind == "429":
                raise faults.rate_limited(rule["retry_after"])
            await self._answer(call, kind)
        except StripeError as error:
            _refuse(call, error)
        self._after_request()
        if kind == "reset_after" and transport is not None:
            transport.abort()
            raise ClientDisconnected
        if kind == "timeout":
            await _until_disconnected(receive)
            raise ClientDisconnected
        call.extra |= {
            "Request-Id": call.id,
            "Stripe-Version": call.headers.get("stripe-version", API_VERSION),
        }
        if call.key:
            call.extra["Idempotency-Key"] = call.key
        await _reply(send, call.status, msgspec.json.encode(call.answer), call.extra)

    async def _answer(self, call: Call, kind: str) -> None:
        route, ids = _find(call)
        self._authorize(call)
        if not call.key:
            await self._execute(call, route, ids, kind)
            return
        mark = fingerprint(call.method, call.path, call.body)
        known = self.keys.begin(call.key, mark, self.sim.now())
        if known is not None:
            call.status, call.answer = known["status"], known["body"]
            call.extra["Idempotent-Replayed"] = "true"
            return
        try:
            await self._execute(call, route, ids, kind)
        except StripeError as error:
            if error.kept:
                self.keys.finish(call.key, mark, self.sim.now(), error.status, error.body)
            else:
                self.keys.give_up(call.key)
            raise
        except BaseException:
            self.keys.give_up(call.key)
            raise
        self.keys.finish(call.key, mark, self.sim.now(), call.status, call.answer)

    async def _execute(self, call: Call, route: Route, ids: tuple[str, ...], kind: str) -> None:
        if kind == "hold":
            await self.released.wait()
        if kind == "500":
            raise faults.broken()
        if call.method != "POST":
            given = forms.decode(call.query)
        elif call.path.startswith("/v2/"):
            given = forms.decode_json(call.body)
        else:
            given = forms.decode(call.body.decode("latin-1"))
        params = check(route.operation, given, route.supported)
        self.sim.request = Request(call.id, call.key or None)
        try:
            answer = route.call(self.sim, params, ids)
        finally:
            self.sim.request = Request()
        try:
            call.answer = show(self.sim, answer, params.get("expand") or ())
        except StripeError as error:
            error.kept = True  # the effect is there
            raise
        if kind == "500_after":
            raise faults.broken()

    def _authorize(self, call: Call) -> None:
        """Check the secret test key, sent as bearer or basic authentication. Raises StripeError (401)."""
        scheme, _, value = call.headers.get("authorization", "").partition(" ")
        key = value.strip()
        if scheme.lower() == "basic":
            with suppress(ValueError):
                key = base64.b64decode(key, validate=True).decode("latin-1").partition(":")[0]
        if not key:
            raise StripeError(
                "You did not provide an API key. You need to provide your API key in the Authorization header, using"
                " Bearer auth (e.g. 'Authorization: Bearer YOUR_SECRET_KEY').",
                status=401, kept=False,
            )  # fmt: skip
        wanted = self.sim.options.api_key
        if call.path.endswith("/meter_event_stream") or call.path.startswith(
            "/v2/billing/meter_event_stream"
        ):
            valid = self._control.session_is_valid(key)
        elif wanted:
            valid = hmac.compare_digest(key.encode("latin-1", "replace"), wanted.encode())
        else:
            valid = key.startswith(("sk_test_", "rk_test_"))
        if not valid:
            raise StripeError(
                f"Invalid API Key provided: {key[:8]}****", status=401, code="api_key_invalid", kept=False
            )


def _refuse(call: Call, error: StripeError) -> None:
    call.status, call.extra = error.status, call.extra | error.headers
    call.answer = {"error": error.error | {"request_log_url": f"/_sim/requests/{call.id}"}}
    if error.status < 500:
        log.info("%s %s: %s %s", call.method, call.path, error.status, error)


def _find(call: Call) -> tuple[Route, tuple[str, ...]]:
    for route in ROUTES:
        if route.method == call.method and (match := route.pattern.fullmatch(call.path)):
            return route, match.groups()
    raise StripeError(
        f"Unrecognized request URL ({call.method}: {call.path}). penstock stripe-sim does not have this operation.",
        status=404, kept=False,
    )  # fmt: skip


async def _read(receive: Receive) -> bytes | None:
    """Return the request's body; None when it is too large."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > forms.MAX_BODY:
            return None
        if not message.get("more_body"):
            return b"".join(parts)


async def _until_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _reply(send: Send, status: int, body: bytes, headers: dict[str, str], type: bytes = _JSON) -> None:
    raw = [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
    raw += [(b"content-type", type), (b"content-length", b"%d" % len(body)), (b"x-penstock-simulated", b"1")]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
