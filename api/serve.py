"""The api role: one process on a shared port, which drains open streams before it exits."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

import uvicorn
import uvloop
from fastapi import APIRouter

from api import stripe_webhooks
from api.admin.deps import AdminDeps
from api.admin.routers import admin_routers
from api.app import create_app
from api.customer import members, organization, statements
from api.customer.protocol import HeadLimitProtocol
from api.deps import Deps
from core.clock import SystemClock
from core.exit_deadline import ExitDeadline
from core.heap import freeze_heap
from core.settings import Settings
from core.telemetry import MetricsServer, flush_tracing, setup_tracing
from gateway.context import AbortReason
from gateway.tokenization.model_tokenizer import PromptTokenizer

CUT_S = 10
"""Seconds after the drain for the answers that were cut to be ended; connections that are left are closed then."""
SETTLE_S = 15
"""Seconds after that for the services to stop; then the process ends, and its spool keeps what is not stored."""
BACKLOG = 2048
"""Connections that the kernel queues until they are accepted."""
TCP_USER_TIMEOUT_MS = 60_000
"""Milliseconds after which the kernel drops a connection whose peer does not acknowledge data."""
KEEP_ALIVE_TIMEOUT_S = 75
"""Seconds that an idle connection is kept: longer than usual proxies keep it, so that they close it first."""

log = logging.getLogger(__name__)


def main(settings: Settings, simulated_tokenizer: PromptTokenizer | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Returns 0, or 1 when the server did not start.

    `simulated_tokenizer`: see `api.deps.Deps`.
    """
    setup_tracing("api", settings)
    try:
        return uvloop.run(_serve(settings, simulated_tokenizer))
    finally:
        flush_tracing()


async def _serve(settings: Settings, simulated_tokenizer: PromptTokenizer | None) -> int:
    """Bind the port, serve, and drain."""
    deadline = ExitDeadline(
        settings.shutdown_delay_s + settings.drain_s + CUT_S + SETTLE_S,
        supervisor_pid=settings.supervisor_pid,
    )
    deadline.start()
    deps = Deps(settings, simulated_tokenizer=simulated_tokenizer)
    listener = bind(settings.host, settings.port)
    config = uvicorn.Config(
        create_app(deps, _admin_routers(deps)),
        loop="none",
        http=HeadLimitProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        date_header=True,
        timeout_keep_alive=KEEP_ALIVE_TIMEOUT_S,
        timeout_graceful_shutdown=settings.drain_s + CUT_S,
    )
    metrics = MetricsServer(
        settings.metrics_port, host=settings.metrics_host, healthy=lambda: deps.meter.ready
    )
    server = DrainingServer(
        config,
        settings.drain_s,
        cut=partial(deps.open_requests.abort_all, AbortReason.SHUTDOWN),
        leave=deps.leave,
        leave_s=settings.shutdown_delay_s,
        on_stop=deadline.arm,
    )
    await metrics.start()
    log.info("api serves", extra={"host": settings.host, "port": listener.getsockname()[1]})
    try:
        await server.serve(sockets=[listener])
    finally:
        await metrics.close()
        listener.close()
    return 0 if server.started else 1


class DrainingServer(uvicorn.Server):
    """A uvicorn server that lets open requests end: it accepts no more, then cuts those that are left after `drain_s`.

    Before that it reports not to be ready for `leave_s` while it still serves: a load balancer that learns of it in
    time sends new requests elsewhere, and none arrives on a connection that is being closed.

    A second signal cuts them at once, a third SIGINT ends the process. The signal is not raised again after the drain,
    so that the process exits with 0.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        drain_s: float,
        *,
        cut: Callable[[], None],
        leave: Callable[[], None],
        leave_s: float,
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        """`leave` makes the readiness check fail; `cut` ends every open request with an error for its client;
        `on_stop` hears of every signal."""
        super().__init__(config)
        self._drain_s = drain_s
        self._cut = cut
        self._leave = leave
        self._leave_s = leave_s
        self._on_stop = on_stop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining = False
        self._signals = 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Leave and then drain at the first signal, cut at the second."""
        self._signals += 1
        self._on_stop()
        if self._signals == 1 and self._loop is not None and self._leave_s:
            self._leave()
            self._loop.call_soon_threadsafe(self._loop.call_later, self._leave_s, self._drain, sig, frame)
        elif self._signals == 2 and self.should_exit:
            if self._draining and self._loop is not None:
                self._loop.call_soon_threadsafe(self._cut)
        else:
            super().handle_exit(sig, frame)

    def _drain(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:  # a second signal has begun it
            super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, cut, and stop the services."""
        self._loop = asyncio.get_running_loop()
        self._draining = True
        if self._signals > 1:
            self._cut()
        timer = self._loop.call_later(self._drain_s, self._cut)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the services and accept connections, then freeze the heap."""
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        freeze_heap()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while serving."""
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket on a port that several processes may share (SO_REUSEPORT).

    Accepted connections inherit TCP_NODELAY and TCP_USER_TIMEOUT. Raises OSError when the port cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux only; elsewhere a proxy in front has to bound this
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TCP_USER_TIMEOUT_MS)
        listener.bind((host, port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _admin_routers(deps: Deps) -> list[APIRouter]:
    """All routers except inference: the admin API, the organisation's own endpoints, statements and webhooks."""
    admin = AdminDeps(
        database=deps.pools.admin,
        revocations=deps.pools.revocations,
        customers=deps.pools.customers,
        exports=deps.pools.exports,
        redis=deps.redis,
        scheduler=deps.scheduler,
        pepper=deps.settings.key_pepper.get_secret_value().encode(),
        settings=deps.settings,
    )
    hooks = stripe_webhooks.router(deps.pools.admin, deps.settings, SystemClock())
    return [
        *admin_routers(admin),
        organization.router(admin),
        *members.routers(admin),
        *statements.routers(admin, deps.keys),
        hooks,
    ]
