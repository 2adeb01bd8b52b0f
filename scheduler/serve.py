"""The scheduler role: builds the service and its internal port from the settings, and stops on SIGTERM."""

import asyncio
import random
import signal

import uvloop

from core.clock import SystemClock
from core.db import Database
from core.errors import Unavailable
from core.heap import freeze_heap
from core.settings import Settings
from core.telemetry import MetricsServer
from scheduler.autoscaling import LivePlanner
from scheduler.engine_counters import EngineCounterStore
from scheduler.host_hours import HostHours
from scheduler.request_trace_store import RequestTraceStore
from scheduler.service import SchedulerService
from workers.catalog import load_catalog
from workers.engine_counters import record_counters
from workers.host_hours import record_heartbeat
from workers.scaling import ScalingDirectory
from workers.targets import TargetDirectory


def main(settings: Settings) -> int:
    """Run the scheduler until SIGTERM or SIGINT; returns 0.

    Raises Unavailable when its address is in use.
    """
    return uvloop.run(_serve(settings))


async def _serve(settings: Settings) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    database = Database(settings.database_url, pool_size=1)
    clock = SystemClock()
    host_hours = HostHours(database, record_heartbeat)
    counters = EngineCounterStore(database, record_counters, clock.monotonic)
    trace = RequestTraceStore(database, clock, recording=settings.record_request_traces)
    targets = TargetDirectory(database)
    scaling = ScalingDirectory(database)
    service = SchedulerService(
        settings.scheduler_host,
        settings.scheduler_port,
        settings.internal_token.get_secret_value(),
        clock=clock,
        rng=random.Random(),  # noqa: S311 - spreads load, keeps no secret
        listeners=[host_hours, counters, trace.trace],
        planner=LivePlanner(load_catalog(), scaling),
        targets=targets,
    )
    metrics = MetricsServer(settings.metrics_port, host=settings.metrics_host)
    try:
        await host_hours.start()
        await counters.start()
        await trace.start()
        targets.start()
        await scaling.start()
        await _listen(service, settings)
        await metrics.start()
        freeze_heap()
        await _until(stop, service)
    finally:
        await metrics.close()
        await service.close()
        await targets.close()
        await scaling.close()
        await host_hours.close()
        await counters.close()
        await trace.close()
        await database.close()
    return 0


async def _listen(service: SchedulerService, settings: Settings) -> None:
    try:
        await service.start()
    except OSError as error:
        address = f"{settings.scheduler_host}:{settings.scheduler_port}"
        raise Unavailable(
            f"the scheduler cannot listen on {address}: {error.strerror}; is another one running? "
            "PENSTOCK_SCHEDULER_PORT sets the port"
        ) from error


async def _until(stop: asyncio.Event, service: SchedulerService) -> None:
    """Wait for `stop`. Raises the error of a service that ended before, so that the supervisor restarts the
    process."""
    stopping = asyncio.create_task(stop.wait())
    running = asyncio.create_task(service.run())
    done, pending = await asyncio.wait({stopping, running}, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    if running in done:
        running.result()
