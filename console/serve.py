"""The console role: one process, its own port, an internal port for metrics; drains on SIGTERM and SIGINT."""

import asyncio
import contextlib
import logging
import random
import signal
from collections.abc import Iterator
from functools import partial
from types import FrameType

import uvicorn
from fastapi import FastAPI
from nicegui import Client
from prometheus_client import Gauge

from console.app import create_app
from console.deps import Console
from console.sessions import SessionStore
from core import redis as core_redis
from core.client_address import ClientAddresses
from core.clock import SystemClock
from core.db import Database
from core.exit_deadline import ExitDeadline
from core.logs import setup_logging
from core.settings import Settings
from core.telemetry import MetricsServer, setup_tracing
from scheduler.authority import trusted
from scheduler.client import SchedulerClient
from scheduler.client_tls import ClientTls
from tenants.changes import announce

log = logging.getLogger(__name__)

DRAIN_S = 5
"""Seconds that open pages have to end; browsers reconnect after a restart."""
STOP_S = 20.0
"""Seconds that a stop may take."""

_OPEN_PAGES = Gauge(
    "penstock_console_open_pages", "Pages held in memory: open tabs, and closed ones for a few seconds."
)
_TASKS = Gauge("penstock_console_tasks", "Tasks of the event loop; returns to its floor when pages close.")


class _Server(uvicorn.Server):
    """uvicorn that does not raise the signal again after the drain, so that a requested stop exits with 0."""

    def __init__(self, config: uvicorn.Config, deadline: ExitDeadline) -> None:
        super().__init__(config)
        self._deadline = deadline

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the drain, which has a deadline."""
        self._deadline.arm()
        super().handle_exit(sig, frame)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Start the drain on SIGTERM and SIGINT."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield


def main(settings: Settings) -> int:
    """Serve the console until SIGTERM or SIGINT. Returns the exit status: 2 when a setting is missing."""
    setup_logging("console", settings.log_level)
    for name in ("database_url", "redis_url"):
        if not getattr(settings, name):
            log.error("the console needs %s", name.upper())
            return 2
    for name in ("key_pepper", "console_secret"):
        if not getattr(settings, name).get_secret_value():
            log.error("the console needs PENSTOCK_%s: keys and sessions depend on it", name.upper())
            return 2
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # it logs socket addresses, which name pages
    setup_tracing("console", settings)
    return asyncio.run(_serve(settings))


def _api_base_url(settings: Settings) -> str:
    base = settings.public_url or f"http://{settings.host}:{settings.port}"
    return base.rstrip("/") + "/v1"


def server_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    """The console's server: trusted proxies (none named = loopback) say who the client is and that it came by TLS."""
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.console_port,
        log_config=None,
        access_log=False,
        server_header=False,
        forwarded_allow_ips=ClientAddresses(settings.trusted_proxies).trusted or ["127.0.0.1", "::1"],
        timeout_graceful_shutdown=DRAIN_S,
        ws="websockets-sansio",
    )


async def _serve(settings: Settings) -> int:
    deadline = ExitDeadline(STOP_S, supervisor_pid=settings.supervisor_pid)
    deadline.start()
    clock = SystemClock()
    database = Database(settings.database_url, name="penstock-console")
    redis = core_redis.connect(settings.redis_url)
    database.after_change = partial(announce, redis)
    scheduler = SchedulerClient(
        settings.scheduler_addresses,
        settings.internal_token.get_secret_value(),
        name="console",
        clock=clock,
        rng=random.Random(),  # noqa: S311 - spreads reconnects, guards nothing
        tls=ClientTls(settings.scheduler_tls, partial(trusted, database, settings)),
    )
    console = Console(
        database=database,
        redis=redis,
        scheduler=scheduler,
        sessions=SessionStore(database, settings.console_secret.get_secret_value().encode(), clock),
        clock=clock,
        api_base_url=_api_base_url(settings),
        key_pepper=settings.key_pepper.get_secret_value().encode(),
        settings=settings,
        addresses=ClientAddresses(settings.trusted_proxies),
    )
    _OPEN_PAGES.set_function(lambda: len(Client.instances))
    loop = asyncio.get_running_loop()
    _TASKS.set_function(lambda: len(asyncio.all_tasks(loop)))
    metrics = MetricsServer(settings.metrics_port, host=settings.metrics_host)
    await metrics.start()
    await scheduler.start()
    server = _Server(server_config(create_app(console), settings), deadline)
    try:
        await server.serve()
    finally:
        await scheduler.close()
        await metrics.close()
        await redis.aclose()
        await database.close()
    return 0 if server.started else 1
