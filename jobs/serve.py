"""The jobs role: Celery worker and beat in one process, with an internal port for health and metrics.

The worker has a thread for every job, because some wait for Stripe or write files for a minute and must not delay the
sealer and the reaper. More processes of this role give more throughput: every job may run more than once.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from celery import Celery, signals
from celery.beat import Service

from core.exit_deadline import ExitDeadline
from core.settings import Settings
from core.supervise import supervise_thread
from core.telemetry import MetricsServer, setup_tracing
from jobs.app import Runner, make_app
from jobs.work import schedule

log = logging.getLogger(__name__)

STALE_S = 60.0
"""Seconds without a successful job after which the role is unhealthy. The sealer is due every two seconds."""

STOP_S = 45.0
"""Seconds that a stop may take: running jobs are finished, and a Redis or PostgreSQL that is gone is not waited for."""

BEAT_STOP_S = 2.0
"""Seconds that a stop waits for beat, which checks once a second. A beat blocked on Redis ends with the process."""


def main(settings: Settings) -> int:
    """Run jobs until SIGTERM or SIGINT, finish the running ones, and return 0 after a clean stop."""
    deadline = ExitDeadline(STOP_S, supervisor_pid=settings.supervisor_pid)
    deadline.start()
    on_stop = lambda **_: deadline.arm()  # noqa: E731 - kept by this frame, because Celery keeps no reference
    signals.worker_shutting_down.connect(on_stop)
    setup_tracing("jobs", settings)
    signals.setup_logging.connect(_keep_logging, weak=False)
    runner = Runner(settings)
    app = make_app(settings, runner)
    # The longest interval bounds how late beat notices a stop.
    beat = Service(app, max_interval=1, scheduler_cls="celery.beat:Scheduler")
    stopping = threading.Event()
    beating = supervise_thread("beat", partial(_beat, app, beat), stopping)
    health = HealthThread(
        settings.metrics_host,
        settings.metrics_port,
        healthy=lambda: beating.is_alive() and time.monotonic() - runner.last_success < STALE_S,
        overdue=runner.overdue,
        stalled=runner.hanging,
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
    beating.start()
    log.info("jobs run")
    try:
        worker.start()
    finally:
        # Without wait=True, which has no timeout: beat cannot be stopped while it waits for Redis.
        stopping.set()
        beat.stop()
        beating.join(timeout=BEAT_STOP_S)
        health.stop()
        runner.close()
        app.close()
    return int(worker.exitcode or 0)


def _beat(app: Celery, beat: Service) -> None:
    app.set_current()
    beat.start()


def _keep_logging(**_: object) -> None:
    """A receiver of setup_logging keeps Celery from configuring logging, which the role has done."""


class HealthThread:
    """/metrics and /healthz on an event loop in its own thread, because Celery occupies the main thread."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        healthy: Callable[[], bool],
        overdue: Callable[[], Sequence[str]],
        stalled: Callable[[], Sequence[str]],
    ) -> None:
        self._host = host
        self._port = port
        self._healthy, self._overdue, self._stalled = healthy, overdue, stalled
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
        server = MetricsServer(
            self._port,
            host=self._host,
            healthy=self._healthy,
            overdue=self._overdue,
            stalled=self._stalled,
        )
        try:
            await server.start()
        except OSError as error:
            log.error("no internal port %d: %s", self._port, error)
            return
        await self._stop.wait()
        await server.close()
