"""Several schedulers in the eyes of clients and agents, which follow the one with the highest term."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from core.addresses import Address
from core.clock import SystemClock
from core.framing import pack, read_frame
from scheduler.door import Door
from scheduler.lease import Tenure
from scheduler.messages import WIRE_VERSION, Welcome
from scheduler.service import SchedulerService
from scheduler.wire import Released
from tests.support.scheduling import TOKEN, beat, client, replica, request
from tests.support.waiting import until
from workers.kv_events_feed import KvOutbox
from workers.scheduler_link import SchedulerLink
from workers.wire import AgentHello, Claim, CommandResult, ReplicaCommand


@asynccontextmanager
async def standing_by() -> AsyncIterator[Door]:
    door = Door("127.0.0.1", 0, TOKEN)
    await door.start()
    try:
        yield door
    finally:
        await door.close()


@asynccontextmanager
async def leading(door: Door, tenure: Tenure) -> AsyncIterator[SchedulerService]:
    """A service behind a door that exists already, until `tenure` ends."""
    made = SchedulerService(
        door,
        clock=SystemClock(),
        rng=random.Random(1),
        term=tenure.term,
        holds=lambda: not tenure.ended,
        outdated=lambda term: tenure.end(f"term {term} is known"),
    )
    made.start()
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def agent(*ports: int, slots: int = 64) -> AsyncIterator[SchedulerLink]:
    """The connections of a real agent with one replica."""

    async def execute(command: ReplicaCommand) -> CommandResult:
        return CommandResult(command.command_id, True, "done")

    link = SchedulerLink(
        [Address("127.0.0.1", port) for port in ports],
        TOKEN,
        "agent-1",
        heartbeat=lambda: beat(replica(slots=slots)),
        execute=execute,
        outbox=KvOutbox(),
    )
    task = asyncio.create_task(link.run())
    try:
        yield link
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_standby_that_takes_over_gets_all_clients_and_what_they_hold() -> None:
    first, second = Tenure(1, 0.0), Tenure(2, 0.0)
    async with (
        standing_by() as one,
        standing_by() as two,
        client(one.port, two.port) as api,
        agent(one.port, two.port, slots=1) as host,
    ):
        await until(lambda: len(one.sessions) == len(two.sessions) == 2)
        assert not api.connected
        assert not host.connected
        async with leading(one, first) as old:
            held = await api.place(request(tenant="t1"))
            waiting = asyncio.create_task(api.place(request(tenant="t2")))
            await until(lambda: old.state.waiting == 1)
            old._push_counters()
            await until(lambda: api._counters.not_from(""))
            async with leading(two, second) as new:
                await until(lambda: new.state.waiting == 1 and len(new.state.active) == 1)
                assert (api._connection.term, host.term) == (2, 2)
                [counter] = [each for each in new.state.counters() if each.tenant_id == "t1"]
                assert counter.service == 200.0, "what t1 was charged by the first scheduler"
                api.release(Released(held.request_id, held.replica_id, 100, 0, 50))
                assert (await waiting).epoch == new.epoch
                await until(lambda: first.ended)
                assert one.handler is None, "the first one has learnt of the second from its peers"
                await until(lambda: len(one.sessions) == 2, what="all are connected to the standby, too")


async def test_a_lost_lease_ends_the_service_at_once_and_the_next_tenure_begins_anew() -> None:
    tenure = Tenure(1, 0.0)
    async with standing_by() as door, client(door.port) as api, agent(door.port) as host:
        async with leading(door, tenure) as old:
            await api.place(request())
            tenure.end("a test says so")
            await old.run()
            await until(lambda: not api.connected and not host.connected)
        async with leading(door, Tenure(2, 0.0)) as new:
            assert (await api.place(request())).epoch == new.epoch != old.epoch
            await until(lambda: len(new.state.active) == 2, what="the first placement is announced")


async def test_what_arrives_after_the_lease_is_lost_is_not_handled() -> None:
    tenure = Tenure(1, 0.0)
    async with standing_by() as door, client(door.port) as api, agent(door.port), leading(door, tenure):
        await until(lambda: api.snapshot().replicas)
        tenure.ended = "while the timer sleeps"
        assert (await api.place(request())).epoch == "", "placed by the client, when the service had closed"


@asynccontextmanager
async def outdated_scheduler(
    answer: Callable[[bytes], msgspec.Struct],
) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Answers that it serves, whatever its client says; keeps the frames that follow."""
    taken: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(pack(msgspec.msgpack.encode(answer(await read_frame(reader)))))
            while True:
                taken.append(await read_frame(reader))
        except (EOFError, OSError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], taken


async def test_a_client_leaves_a_scheduler_of_a_lower_term() -> None:
    hellos: list[bytes] = []

    def welcome(hello: bytes) -> Welcome:
        hellos.append(hello)
        return Welcome("old", wire=WIRE_VERSION, term=4)

    async with (
        standing_by() as door,
        outdated_scheduler(welcome) as (port, taken),
        agent(door.port),
        leading(door, Tenure(5, 0.0)) as service,
        client(door.port, port) as api,
    ):
        await until(lambda: api._connection.term == 5)
        hellos.clear()
        taken.clear()
        await until(lambda: len(hellos) > 1)
        assert (await api.place(request())).epoch == service.epoch
        assert not taken
        assert all(msgspec.msgpack.decode(hello)["term"] == 5 for hello in hellos), (
            "each hello names the higher term"
        )


async def test_an_agent_leaves_a_scheduler_of_a_lower_term() -> None:
    hellos: list[bytes] = []

    def claim(hello: bytes) -> Claim:
        hellos.append(hello)
        return Claim(4)

    async with (
        standing_by() as door,
        leading(door, Tenure(5, 0.0)) as service,
        outdated_scheduler(claim) as (port, taken),
        agent(door.port, port) as host,
    ):
        await until(lambda: host.term == 5)
        taken.clear()
        hellos.clear()
        await until(lambda: len(hellos) > 1 and service.state.fleet.replicas)
        assert not taken, "no heartbeat"
        assert all(msgspec.msgpack.decode(hello, type=AgentHello).term == 5 for hello in hellos)


async def test_a_standby_turns_an_agent_away_that_does_not_know_of_standbys() -> None:
    async with standing_by() as door:
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
        writer.write(pack(msgspec.msgpack.encode(AgentHello(TOKEN, "old"))))
        assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize("term", [-1, 2**53 + 1])
async def test_a_term_out_of_range_closes_the_connection(term: int) -> None:
    async with standing_by() as door:
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
        hello = {"type": "agent_hello", "token": TOKEN, "agent_id": "a", "waits": True, "term": term}
        writer.write(pack(msgspec.msgpack.encode(hello)))
        assert await reader.read() == b""
        writer.close()
        assert door.heard == 0
