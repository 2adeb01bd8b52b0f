"""A real agent on a machine whose GPUs a stand-in shows: no engine runs on a refused host; a slow one says so."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from admin.actor import Actor
from admin.pools import list_acceptances
from core.db import Database
from core.errors import InvalidRequest
from scheduler.host_acceptances import HostAcceptances
from scheduler.service import SchedulerService
from scheduler.wire import HostView
from sim.hub import FakeHub
from tests.support.gpu_machine import gpu_machine
from tests.support.scheduling import TOKEN, client, service
from tests.support.waiting import until
from workers.catalog import load_catalog
from workers.host_acceptances import store_acceptance
from workers.wire import AcceptanceReport, ReplicaStatus

ADMIN = Actor(kind="cli", id="test", label="test", role="platform_admin")
CHECKOUT = Path(__file__).resolve().parents[3]
SERVE = """
touch '{started}'
exec {python} -m sim.engine --model llama-3.3-70b --profile tp2 --port "$port" --speedup 0.5
"""


class Machine:
    """A machine with eight H100, an engine that is half as fast as its profile, a data directory, and a hub."""

    def __init__(self, directory: Path, hub: FakeHub) -> None:
        self.hub = hub
        self.data_dir = directory / "data"
        self.started = directory / "started"
        serve = SERVE.format(started=self.started, python=sys.executable)
        self.env = {
            **gpu_machine(directory, 8, serve),
            "PYTHONPATH": str(CHECKOUT),
            "PENSTOCK_DATA_DIR": str(self.data_dir),
            "PENSTOCK_INTERNAL_TOKEN": TOKEN,
            "PENSTOCK_ENGINE_KEY": "engine-key",
            "PENSTOCK_MODEL": "llama-3.3-70b",
            "PENSTOCK_PROFILE": "tp2",
            "PENSTOCK_PREFIX": "mirrored",
            "HF_ENDPOINT": hub.url,
            "HF_HUB_CACHE": str(directory / "hub"),
            "HF_HUB_OFFLINE": "0",
        }

    @asynccontextmanager
    async def agent(
        self, scheduler: SchedulerService, figures: str, end: int = signal.SIGTERM, **env: str
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        """An agent that finds these figures of the driver's library."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cli.main", "agent"),
            cwd=CHECKOUT,
            env={
                **self.env,
                "NVML_STUB": figures,
                "PENSTOCK_SCHEDULER_PORT": str(scheduler.port),
                **env,
            },
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.send_signal(end)
            await asyncio.wait_for(process.wait(), 60)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    model = load_catalog().model("llama-3.3-70b")
    hub = FakeHub(model.profile("tp2").hub_id or model.hub_id, {"model.safetensors": b"weights"})
    with hub.serve():
        yield Machine(tmp_path, hub)


async def test_a_refused_host_runs_no_engine_and_a_slow_one_serves_with_what_was_measured(
    machine: Machine, database: Database
) -> None:
    stored = HostAcceptances(database, store_acceptance, every_s=0.05)
    await stored.start()
    async with service(listeners=[stored]) as scheduler, client(scheduler.port) as pools:

        async def report() -> AcceptanceReport | None:
            hosts = (await pools.fresh_snapshot()).hosts
            return hosts[0].acceptance if hosts else None

        async def judged() -> list[ReplicaStatus] | None:
            found = await report()
            if found is None or "decode_share" not in found.figures:
                return None
            return (await pools.fresh_snapshot()).replicas

        async with machine.agent(scheduler, "gpus=8 ecc=3"):
            refused = await until(report, 40.0)
            assert refused.verdict == "refused"
            assert "3 uncorrected memory errors" in refused.findings[0].text
            snapshot = await pools.fresh_snapshot()
            assert (snapshot.replicas, snapshot.hosts[0].gpus) == ([], 8)
        assert not machine.started.exists()
        assert machine.hub.downloads == []

        # The GPU was reset. A machine's boot is checked once, and after a refusal anew.
        async with machine.agent(scheduler, "gpus=8"):
            (replica,) = await until(judged, 120.0)
            found = await report()
            assert found is not None
            assert found.verdict in ("degraded", "refused")  # half as fast, or slower on a busy machine
            assert [each.check for each in found.findings if each.severity != "note"] == ["speed"]
            assert found.figures["decode_share"] < 0.6
            if found.verdict == "degraded":
                assert replica.capacity.step_base_s > 1.5 * 0.0171

        async def rows() -> list[str] | None:
            found = [each.verdict for each in await list_acceptances(database, ADMIN)]
            return found if len(found) == 2 else None

        assert await until(rows) == [found.verdict, "refused"]
    await stored.close()
    with pytest.raises(InvalidRequest, match="limit is 0"):
        await list_acceptances(database, ADMIN, limit=0)


async def test_a_host_that_serves_is_not_refused_and_acceptance_can_be_switched_off(machine: Machine) -> None:
    async with service() as scheduler, client(scheduler.port) as pools:

        async def pid() -> int:
            snapshot = await pools.fresh_snapshot()
            return snapshot.replicas[0].pid if snapshot.replicas else 0

        async def host() -> HostView | None:
            hosts = (await pools.fresh_snapshot()).hosts
            return hosts[0] if hosts and hosts[0].acceptance is not None else None

        async with machine.agent(scheduler, "gpus=8 ecc=3", signal.SIGKILL, PENSTOCK_ACCEPTANCE="off"):
            engine = await until(pid, 40.0)
            switched_off = await until(host)
            assert switched_off.acceptance is not None
            assert switched_off.acceptance.verdict == "accepted"
            assert [each.text for each in switched_off.acceptance.findings] == ["PENSTOCK_ACCEPTANCE is off"]

        async def checked() -> bool:
            found = await host()
            return found is not None and found.acceptance != switched_off.acceptance

        async with machine.agent(scheduler, "gpus=8 ecc=3"):
            await until(checked, 60.0)
            found = await host()
            assert found is not None
            assert found.acceptance is not None
            assert found.acceptance.verdict == "degraded"
            checks = [each.check for each in found.acceptance.findings]
            assert checks == ["memory", "host memory", "load"], (
                "the machine of a test has less memory than the kind"
            )
            assert await until(pid, 60.0) == engine


async def test_a_host_without_the_gpus_of_its_kind_is_refused_before_it_can_be_planned(
    machine: Machine,
) -> None:
    """It must not look like a host that serves soon: a provider's host costs money until it is replaced."""
    listing = machine.data_dir.parent / "tools" / "nvidia-smi.out"
    seven = "".join(listing.read_text().splitlines(keepends=True)[:7])
    stated = {"PENSTOCK_HOST_KIND": "gpu-h100x8-640gb", "PENSTOCK_REPLICAS": "4"}
    async with service() as scheduler, client(scheduler.port) as pools:

        async def refusal(text: str) -> AcceptanceReport | None:
            """What is reported, once its first finding says `text`."""
            for host in (await pools.fresh_snapshot()).hosts:
                assert host.host_kind == "gpu-h100x8-640gb"
                if host.acceptance is not None and text in host.acceptance.findings[0].text:
                    return host.acceptance
            return None

        for gpus, env, text, others in (
            (seven, stated, "4 replicas of llama-3.3-70b need 8 GPUs, this machine has 7", ["gpus"]),
            ("", {**stated, "PENSTOCK_MODEL": ""}, "has 8 H100 GPUs, and nvidia-smi lists none here", []),
        ):
            listing.write_text(gpus)
            async with machine.agent(scheduler, "gpus=7", signal.SIGTERM, **env) as agent:
                refused = await until(lambda text=text: refusal(text), 40.0)  # type: ignore[misc]
                assert refused.verdict == "refused"
                assert [each.check for each in refused.findings] == ["plan", *others]
                assert agent.returncode is None, "the agent ends"
                assert (await pools.fresh_snapshot()).replicas == []
    assert not machine.started.exists()
