"""Two models on the same GPUs of one host, one of which was added: a live scheduler with the planner, a real agent that
the scheduler tells of that model, and simulated engines."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from core.clock import SystemClock
from core.db import Database
from core.ids import uuid7
from scheduler.autoscaling import LivePlanner
from scheduler.client import SchedulerClient
from scheduler.core.autoscale import arrange, claims
from scheduler.core.waking import Waker
from scheduler.plan_actor import PlanActor
from scheduler.plan_store import PlanStore
from scheduler.provider_hosts import ProviderHosts
from scheduler.wake_on_demand import catalog_figures
from scheduler.wire import PlaceRequest
from tests.support.scheduling import TOKEN, client, service
from tests.support.waiting import until
from tests.unit.workers.test_model_definition import made
from workers.acting.places import Places
from workers.acting.plan import Mode
from workers.added_models import encode_model, with_added
from workers.catalog import Catalog, load_catalog
from workers.scaling import ScalingLimits
from workers.wire import ReplicaCommand, ReplicaState, ReplicaStatus

CHECKOUT = Path(__file__).resolve().parents[3]
SLEEPS, STOPS = "deepseek-v3.2", "acme/model"
"""Both on the first GPUs; the engine of the first has a sleep mode, that of the other is stopped and started."""
KIND = "gpu-b300x8-2304gb-contracted"
WAIT_S = 120.0


@asynccontextmanager
async def shared_host(data_dir: Path, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    env = {
        **os.environ,
        "PENSTOCK_DATA_DIR": str(data_dir),
        "PENSTOCK_INTERNAL_TOKEN": TOKEN,
        "PENSTOCK_SCHEDULERS": f"127.0.0.1:{port}",
        "PENSTOCK_ENGINE": "sim",
        "PENSTOCK_MODEL": f"{SLEEPS},{STOPS}[0-3]",
        "PENSTOCK_SIM_SPEEDUP": "20",
        "PENSTOCK_METRICS_PORT": "0",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cli.main", "agent", cwd=CHECKOUT, env=env
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), 90)


def replicas(api: SchedulerClient) -> dict[str, ReplicaStatus]:
    return {each.model: each for each in api.snapshot().replicas}


async def serve(api: SchedulerClient, model: str) -> str:
    """The replica on which a held request is placed at last."""
    placed = await api.place(
        PlaceRequest(str(uuid7()), "tenant-1", model, 100, 50, deadline_s=1.0, wake_deadline_s=WAIT_S)
    )
    return placed.replica_id.rsplit("/", 1)[1]


def _own_hosts() -> Catalog:
    """The catalog with KIND as the operator's own: a replica that rests on a host that is paid for keeps its memory."""
    catalog = load_catalog()
    kind = msgspec.structs.replace(catalog.hosts[KIND], own=True)
    return msgspec.structs.replace(catalog, hosts={**catalog.hosts, KIND: kind})


async def test_the_gpus_follow_the_requests_from_one_model_to_the_other_and_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (arrange, claims):
        monkeypatch.setattr(module, "MIN_STAY_S", 0.0)
    monkeypatch.setattr(claims, "TURN_SWITCHES", 0.0)
    entry, _ = made(host_kind=KIND, gpus=4)
    added = {entry.name: entry}
    catalog = with_added(load_catalog(), added)
    store = PlanStore(Database("postgresql://penstock@127.0.0.1:1/none"), 1)
    store.hosts, store.mode, store.stored = ProviderHosts(datetime.now(UTC)), Mode.ON, True
    limits = {SLEEPS: ScalingLimits(), STOPS: ScalingLimits()}
    actor = PlanActor(store, Places(), lambda: limits, SystemClock(), settle_s=0.0)
    waker = Waker(catalog_figures(catalog), lambda model: True, 2.0)
    async with (
        service(
            entry_of=lambda name: encode_model(added[name]) if name in added else "",
            planner=LivePlanner(_own_hosts(), added=lambda: added),
            actor=actor,
            waker=waker,
        ) as scheduler,
        client(scheduler.port) as api,
        shared_host(tmp_path, scheduler.port),
    ):

        def states() -> list[ReplicaState]:
            return [replicas(api)[name].state for name in (SLEEPS, STOPS) if name in replicas(api)]

        await until(
            lambda: states() == [ReplicaState.READY, ReplicaState.STOPPED], WAIT_S, "one of them loads"
        )
        assert replicas(api)[STOPS].detail.endswith(
            "uses its GPUs 0, 1, 2, 3; put that to sleep or stop it first"
        )
        refused = await api.command(ReplicaCommand(str(uuid7()), replicas(api)[STOPS].replica_id, "resume"))
        assert not refused.ok
        assert "uses its GPUs" in refused.message

        assert await serve(api, STOPS) == "model-0"
        await until(lambda: states() == [ReplicaState.ASLEEP, ReplicaState.READY], WAIT_S, "it serves alone")
        assert replicas(api)[SLEEPS].sleep_level == 1
        assert await serve(api, SLEEPS) == "deepseek-v3.2-0"
        await until(lambda: states() == [ReplicaState.READY, ReplicaState.STOPPED], WAIT_S, "and back")
        assert api.snapshot().hosts[0].memory_gb == catalog.hosts[KIND].ram_gb.value

    down = [
        act for act in store._acts if act.act in ("sleep", "stop")
    ]  # requests may wake before the plan does
    assert [(act.model, act.act, act.result) for act in down] == [
        (SLEEPS, "sleep", "done"),
        (STOPS, "stop", "done"),
    ]
    assert f"its GPUs go to {STOPS}: {STOPS}: 0 -> 1 awake: 1 requests are held" in down[0].reason
