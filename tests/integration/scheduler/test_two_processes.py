"""Two schedulers as processes on a real PostgreSQL: a clean hand-over, and PostgreSQL away."""

import asyncio
import signal
from collections.abc import AsyncIterator
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from scheduler.lease import LEASE_S
from scheduler.wire import Released
from sim.fault_proxy import CLEAR, Conditions, FaultProxy
from tests.integration.scheduler.test_serve import process
from tests.integration.scheduler.test_terms import agent
from tests.support.ports import free_port
from tests.support.scheduling import client, request
from tests.support.waiting import until


@pytest.fixture
async def proxy(pg_url: str) -> AsyncIterator[FaultProxy]:
    """The network between the schedulers and PostgreSQL."""
    parts = urlsplit(pg_url)
    made = FaultProxy(str(parts.hostname), parts.port or 5432)
    await made.start()
    yield made
    await made.close()


def through(proxy: FaultProxy, pg_url: str) -> str:
    parts = urlsplit(pg_url)
    user = parts.netloc.rpartition("@")[0]
    return urlunsplit(parts._replace(netloc=f"{user}@127.0.0.1:{proxy.port}"))


async def test_sigterm_hands_over_at_once_and_postgresql_may_be_away(pg_url: str, proxy: FaultProxy) -> None:
    url, ports = through(proxy, pg_url), (free_port(), free_port())
    database = await asyncpg.connect(pg_url)

    async def lease() -> asyncpg.Record:
        return await database.fetchrow("SELECT term, owner, renewed_at FROM scheduler_lease")

    async with agent(*ports) as host, client(*ports) as api, process(url, ports[0], free_port()) as first:
        await until(lambda: host.term == 1 and api.snapshot().replicas)
        async with process(url, ports[1], free_port()):
            held = await api.place(request())
            await until(lambda: len(api._connection._links) == 2, what="the second one stands by")

            proxy.change(Conditions(silent=True))
            before = await lease()
            await asyncio.sleep(2 * LEASE_S)  # the absence itself, not a synchronisation
            assert (await api.place(request())).epoch == held.epoch, "the first one serves on"
            proxy.change(CLEAR)
            await until(lambda: _renewed(lease, before["renewed_at"]))
            after = await lease()
            assert (after["term"], after["owner"]) == (1, before["owner"]), "the standby has not taken over"

            first.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(first.wait(), 60) == 0
            await until(lambda: api._connection.term == host.term == 2)
            later = await api.place(request())
            assert later.epoch not in ("", held.epoch)
            api.release(Released(held.request_id, held.replica_id))
    await database.close()


async def _renewed(lease, since) -> bool:
    return (await lease())["renewed_at"] > since
