"""A day of a fleet on the fake cloud: droplets come and go with the load, whatever goes wrong with some of them, no
request is lost, and finance's cost of hosts is the cloud's bill."""

import asyncio
import random
import re
import shlex
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from ipaddress import IPv4Network
from pathlib import Path

import asyncpg
import httpx
import pytest

from admin import credits as admin_credits
from admin import host_costs, hosts
from admin import prices as admin_prices
from core.addresses import parse_addresses
from core.clock import SystemClock
from core.db import Database
from core.settings import Settings
from scheduler.authority import certificate, trusted
from scheduler.client import SchedulerClient
from scheduler.client_tls import ClientTls
from sim.digitalocean.cloud import FakeCloud
from sim.digitalocean.droplets import Droplet
from sim.digitalocean.faults import Fault
from sim.digitalocean.namespaces import NamespaceNetwork
from tests.integration.workers.conftest import cloud as cloud
from tests.support.added_model import PRICE
from tests.support.fake_droplets import TOKEN as CLOUD_TOKEN
from tests.support.gpu_machine import gpu_machine
from tests.support.invariants import money_is_sound, rows_by_request, settled_everything
from tests.support.load import Seen
from tests.support.namespace_network import droplet_environment, namespace_network
from tests.support.ports import free_port
from tests.support.roles import TOKEN, command, role
from tests.support.slow_model import (
    NAME,
    SET_ACTING,
    SET_SCALING,
    SET_TARGETS,
    SET_WAKE_DEADLINE,
    add_command,
    load,
)
from tests.support.tenancy import ADMIN, PEPPER, make_organisation
from tests.support.waiting import until
from workers.wire import SIMULATED_HOST, ReplicaState

NETWORK = IPv4Network("10.213.78.0/24")
GATEWAY = next(NETWORK.hosts())
SETTLE_S = 300.0
JOBS = """
import sys
from datetime import timedelta
import jobs.hosts
from workers.providers import decide
jobs.hosts.EVERY_S = 1.0
decide.FIT_WITHIN = timedelta(seconds=10)
decide.UNCHECKED_AFTER = timedelta(seconds=5)
decide.FIRST_PAUSE = timedelta(seconds=2)
decide.DESTROYED_AFTER = timedelta(seconds=2)
from core.settings import Settings
from jobs import serve
sys.exit(serve.main(Settings()))
"""
"""The jobs role with the times of minutes as seconds."""


class Books:
    """The platform's database, for the checks of money."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def connect(self) -> "asyncpg.Connection[asyncpg.Record]":
        return await asyncpg.connect(self._url)


class DataCentre:
    """Boots each droplet of the fake in a network namespace, and ends what runs in it when the droplet is gone."""

    def __init__(self, cloud: FakeCloud, network: NamespaceNetwork, directory: Path) -> None:
        self._cloud, self._network, self._directory = cloud, network, directory
        self.machines: dict[str, str] = {}
        """Namespace by name of the droplet, of those that run."""
        self.faulty: Callable[[int], bool] = lambda number: False
        """Whether the droplet with a number, from 0, gets GPUs with errors of their memory."""
        self._booted = 0
        self._environment = droplet_environment(directory)

    async def run(self) -> None:
        """Follow the cloud until cancelled."""
        while True:
            alive = {one.name: one for one in self._cloud.alive()}
            for name in self.machines.keys() - alive.keys():
                await asyncio.to_thread(self._network.halt, self.machines.pop(name))
            for name in alive.keys() - self.machines.keys():
                await self._boot(alive[name])
            await asyncio.sleep(0.1)

    async def _boot(self, droplet: Droplet) -> None:
        root = self._directory / droplet.name
        image = root / "etc" / "penstock"
        image.mkdir(parents=True)
        settings = {"PENSTOCK_ENGINE": "sim"}
        if self.faulty(self._booted):
            settings = gpu_machine(root / "machine", 1) | {"NVML_STUB": "gpus=1 ecc=3"}
        lines = [f"{name}={shlex.quote(value)}\n" for name, value in settings.items()]
        (image / "local.env").write_text("".join(lines))
        self._booted += 1
        await asyncio.to_thread(self._network.boot, droplet.name, droplet.user_data, root, self._environment)
        self.machines[droplet.name] = self._network.namespaces[-1]

    def logs(self) -> str:
        """The ends of all agents' logs."""
        files = sorted(self._directory.glob("*/var/lib/penstock/agent.log"))
        return "\n".join(f"{each}: {each.read_text()[-1500:]}" for each in files)


@pytest.fixture
def network() -> Iterator[NamespaceNetwork]:
    with namespace_network(NETWORK) as made:
        yield made


class Platform:
    """Scheduler, API and jobs as processes, with the fake cloud as DigitalOcean."""

    def __init__(
        self, database: Database, stores: dict[str, str], url: str, gateway: str, directory: Path
    ) -> None:
        self.database, self.stores = database, stores
        self._directory, self._api_port = directory, free_port()
        self._scheduler = f"{gateway}:{free_port()}"
        self._cloud = {
            "PENSTOCK_FLEET": "test",
            "PENSTOCK_HOST_PLACES": "*=digitalocean/nyc2",
            "PENSTOCK_HOST_SCHEDULERS": self._scheduler,
            "DIGITALOCEAN_TOKEN": CLOUD_TOKEN,
            "PENSTOCK_DIGITALOCEAN_URL": url,
            "PENSTOCK_AUTOSCALER_STABILIZATION_S": "10",
            "PENSTOCK_AUTOSCALER_HOST_IDLE_S": "4",
        }

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._api_port}/v1"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        host, _, port = self._scheduler.partition(":")
        listens = {"PENSTOCK_SCHEDULER_HOST": host, "PENSTOCK_SCHEDULER_PORT": port}
        api = {"PENSTOCK_SCHEDULERS": self._scheduler, "PENSTOCK_PORT": str(self._api_port)}
        with (
            role("scheduler", self._directory, **listens, **self.stores, **self._cloud),
            role("api", self._directory, **api, **self.stores),
        ):

            async def has_authority() -> bool:
                return await certificate(self.database) is not None

            await until(has_authority, SETTLE_S, "the scheduler has a certificate")
            with role("jobs", self._directory, main=JOBS, **self.stores, **self._cloud):
                await until(self._answers, SETTLE_S, "the API answers")
                yield

    @asynccontextmanager
    async def pool(self) -> AsyncIterator[SchedulerClient]:
        """A client of the scheduler, which sees all hosts and replicas."""
        settings = Settings(database_url="")
        client = SchedulerClient(
            parse_addresses(self._scheduler, "schedulers"),
            TOKEN,
            name="test",
            clock=SystemClock(),
            rng=random.Random(1),
            tls=ClientTls(settings.scheduler_tls, partial(trusted, self.database, settings)),
        )
        await client.start()
        try:
            await client.fresh_snapshot()
            yield client
        finally:
            await client.close()

    async def _answers(self) -> bool:
        with suppress(httpx.TransportError):
            async with httpx.AsyncClient(timeout=30.0) as client:
                return (await client.get(f"{self.base_url.removesuffix('/v1')}/healthz")).status_code == 200
        return False

    async def penstock(self, *words: str) -> object:
        """What a command prints, as an operator runs it."""
        return await asyncio.to_thread(command, self.stores, *words, timeout_s=300.0)


@pytest.mark.timeout(1800)
@pytest.mark.allow_hosts(["127.0.0.1", str(GATEWAY)])
async def test_droplets_come_with_the_load_fail_and_go_and_their_bill_is_our_cost(
    database: Database,
    pg_url: str,
    redis_url: str,
    cloud: tuple[FakeCloud, str],
    network: NamespaceNetwork,
    tmp_path: Path,
) -> None:
    fake, url = cloud
    stores = {"DATABASE_URL": pg_url, "REDIS_URL": redis_url, "PENSTOCK_KEY_PEPPER": PEPPER.decode()}
    platform = Platform(database, stores, url, network.gateway, tmp_path)
    centre = DataCentre(fake, network, tmp_path)
    centre.faulty = lambda number: number == 1
    fake.faults.hidden_after_error_s = 3
    fake.faults.add(Fault.CREATE_CUT_AFTER)
    seen: list[Seen] = []
    made = await make_organisation(database)
    await admin_credits.grant_credit(
        database, ADMIN, tenant_id=made.tenant_id, amount_usd="10", reason="test"
    )

    async with platform.running(), platform.pool() as pool:

        def serve(*droplets: Droplet) -> bool:
            """Whether these hosts have a ready replica, and no other has."""
            replicas = [one for one in pool.snapshot().replicas if one.state is ReplicaState.READY]
            names = {one.replica_id.split("/")[0].removeprefix(SIMULATED_HOST) for one in replicas}
            return names == {one.name for one in droplets}

        following = asyncio.create_task(centre.run())
        try:
            await offer(platform, tmp_path)
            await until(lambda: len(fake.alive()) == 1, SETTLE_S, "the minimum is created")
            [first] = fake.alive()
            assert fake.faults.used == {Fault.CREATE_CUT_AFTER: 1}
            await until(lambda: expected_in_s(pool) is not None, SETTLE_S, "the first host is expected")
            async with load(platform.base_url, made.key, SETTLE_S, seen):  # one request, held until then
                await until(lambda: serve(first), SETTLE_S, "the first host serves")

            async with load(platform.base_url, made.key, 1.0, seen):
                # The second host has GPUs with errors; it is refused, and replaced.
                await until(lambda: len(fake.droplets) == 2, SETTLE_S, "a host is added")
                await until(lambda: len(fake.droplets) == 3, SETTLE_S, "the refused host is replaced")
                await until(lambda: len(fake.alive()) == 2, SETTLE_S, "the refused host is destroyed")
                refused, third = list(fake.droplets.values())[1:]
                assert refused.gone_at is not None
                await until(lambda: serve(first, third), SETTLE_S, "two hosts serve")
                scaling = ("models", "set-scaling", NAME, "--reason", "test")
                await platform.penstock(*scaling, "--min", "2")  # whatever this machine's speed
                # The provider takes the first one back. Entered without a process of its own, which a slow machine may
                # start after the instant.
                at = datetime.now(UTC) + timedelta(seconds=60)
                await hosts.note_reclaim(database, ADMIN, name=first.name, at=at, reason="test")
                fake.reclaim(first.droplet_id, int(at.timestamp()) + 60)
                await until(lambda: len(fake.droplets) == 4, SETTLE_S, "a replacement is created")
                fourth = list(fake.droplets.values())[-1]
                await until(lambda: first not in fake.alive(), SETTLE_S, "the first host is gone")
                await until(lambda: serve(third, fourth), SETTLE_S, "the replacement serves")
            await platform.penstock(*scaling, "--min", "0")
            await until(lambda: len(fake.alive()) == 1, SETTLE_S, "a host is destroyed as the load is gone")
            # The last one would go minutes later, when the measured rate counts as zero.
            await platform.penstock(*scaling, "--max", "0")
            await until(lambda: not fake.alive(), SETTLE_S, "all hosts are destroyed")

            async def ended() -> bool:
                return not await hosts.list_hosts(database, ADMIN)

            await until(ended, SETTLE_S, "all hosts have ended")
        except AssertionError as error:
            broken = following.exception() if following.done() else None
            raise AssertionError(f"{error}\n{centre.logs()}") from broken
        finally:
            following.cancel()

    failed = [(one.status, one.error, one.problem) for one in seen if not one.finished]
    assert failed == []
    books = Books(re.sub(r"^postgresql\+\w+:", "postgresql:", pg_url))
    await settled_everything(books, str(made.tenant_id))
    rows = await rows_by_request(books, str(made.tenant_id))
    assert rows.keys() == {one.request_id for one in seen}
    assert all(row["cost"] > 0 for row in rows.values())
    assert {row["region"] for row in rows.values()} == {"nyc2"}
    await money_is_sound(books, str(made.tenant_id))

    now = datetime.now(UTC)
    month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    [cost] = await host_costs.host_costs(database, ADMIN, start=month - timedelta(days=31), end=now)
    assert cost.hosts == len(fake.droplets)
    assert 0 < Decimal(cost.no_agent_usd) <= Decimal(cost.cost_usd), "no agent runs while a droplet starts"
    assert Decimal(cost.cost_usd) == Decimal(fake.ledger.cents(int(time.time()))) / 100
    assert len({one.name for one in fake.droplets.values()}) == len(fake.droplets), (
        "no host was created twice"
    )


def expected_in_s(pool: SchedulerClient) -> float | None:
    """Seconds until the model serves, as the scheduler expects."""
    return next((view.ready_in_s for view in pool.snapshot().models if view.model == NAME), None)


async def offer(platform: Platform, directory: Path) -> None:
    """Offer the model with a price, targets and limits, and let the plan act."""
    await platform.penstock(*add_command(directory))
    await admin_prices.set_price(platform.database, ADMIN, model=NAME, **PRICE, below_cost=True)
    for words in (SET_TARGETS, SET_SCALING, SET_WAKE_DEADLINE, SET_ACTING):
        await platform.penstock(*words)
