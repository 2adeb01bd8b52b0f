"""The scheduler role: stands by until it has the lease, then serves until it has lost it, and stops on SIGTERM."""

import asyncio
import math
import random
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import uvloop

from core.addresses import Address, is_loopback
from core.clock import SystemClock
from core.db import Database
from core.errors import Unavailable
from core.exit_deadline import ExitDeadline
from core.heap import freeze_heap
from core.settings import Settings
from core.supervise import supervise
from core.telemetry import MetricsServer
from scheduler.adapter_answers import AdapterAnswers
from scheduler.arriving_hosts import ArrivingHosts
from scheduler.autoscaling import LivePlanner
from scheduler.core.autoscale.model_planner import AutoscalerSettings
from scheduler.core.config import HEARTBEAT_STALE_S
from scheduler.core.waking import Waker
from scheduler.door import Door
from scheduler.engine_counters import EngineCounterStore
from scheduler.host_acceptances import HostAcceptances
from scheduler.host_admission import HostAdmission
from scheduler.host_hours import HostHours
from scheduler.lease import Tenure
from scheduler.lease_keeper import LeaseKeeper, boot_seconds
from scheduler.lease_table import LeaseTable, owner_at
from scheduler.plan_actor import PlanActor
from scheduler.plan_store import PlanStore
from scheduler.request_trace_store import RequestTraceStore
from scheduler.rollout_store import RolloutStore
from scheduler.rollouts import RolloutRunner
from scheduler.server_tls import ServerTls
from scheduler.service import SchedulerService
from scheduler.wake_on_demand import catalog_figures
from workers.acting.places import parse_places
from workers.adapter_options import max_adapters
from workers.added_models import AddedModelDirectory
from workers.catalog import Catalog, load_catalog
from workers.engine_counters import record_counters
from workers.host_acceptances import store_acceptance
from workers.host_hours import record_heartbeat
from workers.scaling import NO_LIMITS, ScalingDirectory
from workers.targets import TargetDirectory

ResultT = TypeVar("ResultT")

STOP_S = 15.0
"""Seconds that a stop may take, in which the last heartbeats are stored and the lease is given back."""


def main(settings: Settings) -> int:
    """Run the scheduler until SIGTERM or SIGINT; returns 0.

    Raises Unavailable when its address is in use.
    """
    return uvloop.run(_serve(settings))


async def _serve(settings: Settings) -> int:
    stop = asyncio.Event()
    deadline = ExitDeadline(STOP_S, supervisor_pid=settings.supervisor_pid)
    deadline.start()

    def on_signal() -> None:
        deadline.arm()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    database = Database(settings.database_url, name="penstock-hosts", pool_size=1)
    hosts = HostAdmission(database, settings.join_required)
    remote = settings.scheduler_tls == "remote" and not is_loopback(settings.scheduler_host)
    tls = ServerTls(database, settings, SystemClock().now) if remote else None
    token = settings.internal_token.get_secret_value()
    door = Door(settings.scheduler_host, settings.scheduler_port, token, hosts, tls)
    metrics = MetricsServer(settings.metrics_port, host=settings.metrics_host)
    await _listen(door, settings)
    table = LeaseTable(settings.database_url, owner_at(Address(settings.scheduler_host, door.port)))
    keeper = LeaseKeeper(table, heard=lambda: door.heard)
    try:
        await metrics.start()
        await hosts.start()
        if tls is not None:
            await tls.start()
        freeze_heap()
        while not stop.is_set():
            if (tenure := await _unless(stop, keeper.take())) is not None:
                await _lead(settings, door, keeper, tenure, stop)
    finally:
        await metrics.close()
        await door.close()
        await hosts.close()
        if tls is not None:
            await tls.close()
        await database.close()
        table.close()
    return 0


async def _listen(door: Door, settings: Settings) -> None:
    try:
        await door.start()
    except OSError as error:
        address = f"{settings.scheduler_host}:{settings.scheduler_port}"
        raise Unavailable(
            f"the scheduler cannot listen on {address}: {error.strerror}; is another one running? "
            "PENSTOCK_SCHEDULER_PORT sets the port"
        ) from error


async def _lead(
    settings: Settings, door: Door, keeper: LeaseKeeper, tenure: Tenure, stop: asyncio.Event
) -> None:
    """Serve until `stop` or until the lease is lost. Raises the error of a service that ended before, so that the
    supervisor restarts the process."""
    renewing = supervise("scheduler-lease", partial(keeper.renew, tenure))
    try:
        async with _service(settings, door, tenure) as service:
            await _unless(stop, service.run())
            await _cancelled(renewing)
            if not tenure.ended:
                await door.close()
                await keeper.release(tenure)
    finally:
        await _cancelled(renewing)


async def _cancelled(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def _service(settings: Settings, door: Door, tenure: Tenure) -> AsyncIterator[SchedulerService]:
    """A service for one tenure, with what records its events; the rest of that is stored at the end."""
    database = Database(settings.database_url, pool_size=1)
    clock = SystemClock()
    host_hours = HostHours(database, record_heartbeat)
    acceptances = HostAcceptances(database, store_acceptance)
    counters = EngineCounterStore(database, record_counters, clock.monotonic)
    trace = RequestTraceStore(database, clock, recording=settings.record_request_traces)
    targets = TargetDirectory(database)
    scaling = ScalingDirectory(database)
    added, adapters = AddedModelDirectory(database), AdapterAnswers(database)
    plans = PlanStore(database, tenure.term, now=clock.monotonic)
    rollouts = RolloutStore(database, tenure.term)
    runner = RolloutRunner(rollouts, plans.record, clock.monotonic)
    door.entry_of = added.entry_of
    catalog, places = load_catalog(), parse_places(settings.host_places)
    service = SchedulerService(
        door,
        clock=clock,
        rng=random.Random(),  # noqa: S311 - spreads load, keeps no secret
        listeners=[host_hours, acceptances, counters, trace.trace],
        planner=LivePlanner(
            catalog,
            scaling,
            autoscaler_settings(settings),
            added=lambda: added.models,
            places=places,
        ),
        actor=PlanActor(
            plans,
            places,
            lambda: scaling.limits,
            clock,
            hosts_dry_run=settings.hosts_dry_run,
            rollouts=runner,
            arriving=arriving_hosts(catalog),
        ),
        rollouts=runner,
        targets=targets,
        adapters=adapters,
        waker=Waker(
            catalog_figures(catalog),
            lambda model: scaling.limits.get(model, NO_LIMITS).max_awake > 0,
            HEARTBEAT_STALE_S,
        ),
        term=tenure.term,
        holds=lambda: tenure.holds(boot_seconds()),
        outdated=lambda term: tenure.end(f"a scheduler of term {term} is known"),
    )
    try:
        await host_hours.start()
        await acceptances.start()
        await counters.start()
        await trace.start()
        targets.start()
        await scaling.start()
        await added.start()
        await plans.start()
        await rollouts.start()
        service.start()
        yield service
    finally:
        await service.close()
        await asyncio.gather(
            *(
                part.close()
                for part in (
                    targets,
                    scaling,
                    added,
                    adapters,
                    host_hours,
                    acceptances,
                    counters,
                    trace,
                    plans,
                    rollouts,
                )
            )
        )
        await database.close()


def arriving_hosts(catalog: Catalog) -> ArrivingHosts:
    """When hosts in creation serve, by the catalog's figures until they are learnt."""
    create_s = None if catalog.ladder is None else catalog.ladder.create_s.value

    def takes_adapters(name: str) -> bool:
        model = catalog.models.get(name)
        return model is not None and max_adapters(model.profile()) > 0

    return ArrivingHosts(catalog_figures(catalog), create_s, catalog.gpu_of, takes_adapters)


def autoscaler_settings(settings: Settings) -> AutoscalerSettings:
    """The autoscaler's tunables of the settings."""
    return AutoscalerSettings(
        stabilization_s=settings.autoscaler_stabilization_s,
        host_idle_s=settings.autoscaler_host_idle_s or math.inf,
    )


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, ResultT]) -> ResultT | None:
    """The result of `work`; None when `stop` is set before, which cancels it."""
    stopping, working = asyncio.create_task(stop.wait()), asyncio.create_task(work)
    try:
        await asyncio.wait({stopping, working}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (stopping, working):
            task.cancel()
        await asyncio.gather(stopping, working, return_exceptions=True)
