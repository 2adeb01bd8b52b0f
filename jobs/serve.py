"""The jobs role: Celery worker and beat in one process, and an internal port that says how they are.

The worker has a thread for every job (threads pool): most are short and wait for PostgreSQL, some talk to Stripe or
write files for a minute, and those must not hold up the sealer and the reaper. More throughput = more processes of this
role; every job may run twice.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable

from celery import signals
from celery.beat import EmbeddedService

from core.settings import Settings
from core.telemetry import MetricsServer, setup_tracing
from jobs.app import Runner, make_app
from jobs.work import schedule

log = logging.getLogger(__name__)

STALE_S = 60.0
"""No job succeeded for so long: unhealthy. The sealer is due every two seconds."""

BEAT_STOP_S = 2.0
"""Seconds to wait for beat at a stop: it looks once a second. A beat that waits for Redis ends with the process."""


def main(settings: Settings) -> int:
    """Work until SIGTERM or SIGINT; the running job is finished first. Returns 0 after a clean stop."""
    setup_tracing("jobs", settings)
    signals.setup_logging.connect(_keep_logging, weak=False)
    runner = Runner(settings)
    app = make_app(settings, runner)
    beat = EmbeddedService(app, thread=True, scheduler_cls="celery.beat:Scheduler")
    health = HealthThread(
        settings.metrics_host,
        settings.metrics_port,
        lambda: beat.is_alive() and time.monotonic() - runner.last_success < STALE_S,
    )
    worker = app.Worker(
        pool="threads",
        concurrency=len(schedule(settings)),
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        quiet=True,
    )
    health.start()
    beat.start()
    log.info("jobs run")
    try:
        worker.start()
    finally:
        # Not beat.stop(): it waits without a bound, and beat cannot be stopped while it waits for Redis.
        beat.service.stop()
        beat.join(timeout=BEAT_STOP_S)
        health.stop()
        runner.close()
        app.close()
    return int(worker.exitcode or 0)


def _keep_logging(**_: object) -> None:
    """Celery must not configure logging: the role has done it."""


class HealthThread:
    """/metrics and /healthz on an event loop in a thread of its own: the main thread belongs to Celery."""

    def __init__(self, host: str, port: int, healthy: Callable[[], bool]) -> None:
        self._host = host
        self._port = port
        self._healthy = healthy
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)

    def start(self) -> None:
        """Listen."""
        self._thread.start()

    def stop(self) -> None:
        """Stop listening."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server = MetricsServer(self._port, host=self._host, healthy=self._healthy)
        try:
            await server.start()
        except OSError as error:
            log.error("no internal port %d: %s", self._port, error)
            return
        await self._stop.wait()
        await server.close()
