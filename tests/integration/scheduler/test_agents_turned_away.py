"""Agents that a scheduler turns away are told why once and come back ever more seldom; silent schedulers are left."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec
import pytest

from core.addresses import Address
from core.framing import pack, read_frame
from scheduler import service as service_module
from tests.support.scheduling import TOKEN, beat, client, replica, service
from tests.support.scheduling import agent as scripted_agent
from tests.support.waiting import until
from workers import scheduler_link
from workers.kv_events_feed import KvOutbox
from workers.scheduler_link import SchedulerLink
from workers.wire import Claim, CommandResult, ReplicaCommand


@asynccontextmanager
async def agent(
    port: int, run: str, waits: list[float] | None = None, *, token: str = TOKEN
) -> AsyncIterator[SchedulerLink]:
    """The connection of an agent, whose waits are written to `waits` and pass at once."""

    async def pause(seconds: float) -> None:
        if waits is not None:
            waits.append(seconds)
        await asyncio.sleep(0.01)

    async def execute(command: ReplicaCommand) -> CommandResult:
        return CommandResult(command.command_id, True)

    link = SchedulerLink(
        [Address("127.0.0.1", port)],
        token,
        "agent-1",
        heartbeat=lambda: beat(replica(detail=run)),
        execute=execute,
        outbox=KvOutbox(),
        run=run,
        pause=pause,
    )
    task = asyncio.create_task(link.run())
    try:
        yield link
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "workers.scheduler_link" and record.levelno == logging.ERROR
    ]


async def test_an_agent_with_a_wrong_token_is_told_once_and_waits_longer_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    waits: list[float] = []
    async with service() as scheduler, agent(scheduler.port, "one", waits, token="wrong"):
        await until(lambda: len(waits) >= 7)
        assert waits[:7] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
        [message] = told(caplog)
        assert "wrong internal token: PENSTOCK_INTERNAL_TOKEN must be the scheduler's" in message
        assert not scheduler.state.fleet.replicas


async def test_a_second_agent_with_the_same_id_takes_nothing_from_the_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    waits: list[float] = []
    async with service() as scheduler, agent(scheduler.port, "one") as first:
        await until(lambda: scheduler.state.fleet.replicas)
        session = scheduler._agents["agent-1"]
        async with agent(scheduler.port, "two", waits) as second:
            await until(lambda: len(waits) >= 3)
            assert waits[:3] == [1.0, 2.0, 4.0]
            assert (first.connected, second.connected) == (True, False)
            assert scheduler._agents["agent-1"] is session, "the first was never cut off"
            [message] = told(caplog)
            assert "another agent with the id agent-1 is connected, from 127.0.0.1" in message


async def test_the_second_is_taken_when_the_first_has_gone() -> None:
    async with service() as scheduler:
        async with agent(scheduler.port, "one"):
            await until(lambda: scheduler.state.fleet.replicas)
        async with agent(scheduler.port, "two") as second:
            await until(lambda: second.connected)


async def test_the_second_is_taken_when_the_first_is_no_longer_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that lost its power leaves a connection behind that nobody closes."""
    monkeypatch.setattr(service_module, "AGENT_LIVES_S", 0.2)
    monkeypatch.setattr(scheduler_link, "HEARTBEAT_S", 3600.0)
    async with service() as scheduler, agent(scheduler.port, "one") as first:
        await until(lambda: scheduler.state.fleet.replicas)
        async with agent(scheduler.port, "two") as second:
            await until(lambda: second.connected and not first.connected)


async def test_a_run_whose_connection_was_lost_replaces_it_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async with service() as scheduler, agent(scheduler.port, "one"):
        await until(lambda: scheduler.state.fleet.replicas)
        session = scheduler._agents["agent-1"]
        async with agent(scheduler.port, "one"):
            await until(lambda: scheduler._agents.get("agent-1") not in (None, session))
        assert not told(caplog)


async def test_a_command_to_a_connection_that_was_replaced_is_answered_at_once() -> None:
    async with service() as scheduler, scripted_agent(scheduler.port, replica("host/r0")) as first:
        first.answers = False
        async with client(scheduler.port) as api:
            command = ReplicaCommand("c1", "host/r0", "drain", 3_600.0)
            asked = asyncio.create_task(api.command(command))
            await until(lambda: first.commands)
            async with scripted_agent(scheduler.port, replica("host/r0")):
                answer = await asked
    assert not answer.ok
    assert "may or may not have run" in answer.message


async def test_connections_that_end_at_once_are_made_ever_more_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An older scheduler lets two agents with one id cut each other off, again and again."""
    seen: list[float] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(pack(msgspec.msgpack.encode(Claim(1))))
        with suppress(EOFError):
            await read_frame(reader)
            await read_frame(reader)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, agent(server.sockets[0].getsockname()[1], "one", seen):
        await until(lambda: len(seen) >= 6)
    assert seen[:6] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


async def test_a_scheduler_that_falls_silent_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    assert scheduler_link.SILENT_S < 5.0
    monkeypatch.setattr(scheduler_link, "SILENT_S", 0.3)
    greeted: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeted.append(writer)
        writer.write(pack(msgspec.msgpack.encode(Claim(1))))
        while await reader.read(4096):
            pass
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, agent(server.sockets[0].getsockname()[1], "one") as host:
        await until(lambda: host.connected)
        await until(lambda: not host.connected)
        await until(lambda: len(greeted) > 1, what="it connects again")
