"""Runs the stand-in in one process with one event loop."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from core.clock import Clock
from sim.stripe import events
from sim.stripe.account import open_account
from sim.stripe.server import StripeSim
from sim.stripe.sim import Options
from sim.stripe.webhooks import WebhookSender

if TYPE_CHECKING:
    import aiohttp

_TIMEOUT_S = 20.0


class Protocol(HttpToolsProtocol):
    """uvicorn's protocol, which also exposes its transport so that a fault can cut the connection."""

    def on_message_begin(self) -> None:
        """Called by the parser for every request."""
        super().on_message_begin()
        self.scope["penstock.transport"] = self.transport  # type: ignore[typeddict-unknown-key]  # an extension


class WebhookClient:
    """Sends webhooks. The HTTP client is loaded for the first webhook, because most runs send none."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, url: str, body: bytes, headers: dict[str, str]) -> int:
        """POST `body` and return the HTTP status. Raises OSError or TimeoutError."""
        import aiohttp

        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
            self._session = aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())
        try:
            async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as answer:
                return answer.status
        except aiohttp.ClientError as error:
            raise OSError(str(error)) from error

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


def build(clock: Clock, options: Options, path: Path | None, client: WebhookClient) -> StripeSim:
    """Return the application on its state, loaded from `path` if given."""
    sim = open_account(clock, options, path)
    return StripeSim(sim, WebhookSender(sim, client))


def ensure_endpoint(app: StripeSim, url: str, secret: str) -> None:
    """Register a webhook endpoint for all events, unless it exists."""
    for endpoint in app.sim.store.all("webhook_endpoint"):
        if endpoint["url"] == url:
            endpoint |= {"_secret": secret, "status": "enabled"}
            app.sim.save(endpoint)
            break
    else:
        events.add_endpoint(app.sim, url, ["*"], secret, description="penstock stripe-sim --webhook-url")
    app.sim.store.flush()


def config(app: StripeSim, host: str, port: int) -> uvicorn.Config:
    """Return uvicorn's configuration."""
    return uvicorn.Config(
        app, host=host, port=port, http=Protocol, lifespan="on", log_level="warning", access_log=False,
        server_header=False, date_header=True, proxy_headers=False, ws="none", timeout_graceful_shutdown=3,
    )  # fmt: skip


class Server(uvicorn.Server):
    """uvicorn's server, but a stop by signal exits with status 0."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGTERM and SIGINT while serving."""
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def run(app: StripeSim, client: WebhookClient, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT."""

    async def serve() -> None:
        try:
            await Server(config(app, host, port)).serve()
        finally:
            await client.close()

    asyncio.run(serve())
