"""Whatever a peer sends or does, others are served."""

import asyncio
import os
import struct

import msgspec
import pytest
from prometheus_client import generate_latest

from core.errors import Refused
from core.framing import pack, read_frame
from scheduler import metrics
from scheduler.messages import (
    WIRE_VERSION,
    Announce,
    AnnouncedPlacement,
    AnnouncedRequest,
    Answers,
    ClientBatch,
    ClientHello,
    TenantCounter,
    ToClient,
    Welcome,
)
from scheduler.sessions import HELLO_MAX_BYTES
from scheduler.wire import PlaceRequest, Released
from tests.support.scheduling import MODEL, TOKEN, agent, beat, capacity, client, replica, request, service
from tests.support.waiting import until
from workers.wire import AgentHello, Targets

HELLO = pack(msgspec.msgpack.encode(ClientHello(TOKEN, "stranger", WIRE_VERSION)))


async def _closed(port: int, *sent: bytes) -> bool:
    """Whether the scheduler hangs up on who sends this."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for data in sent:
            writer.write(data)
        async with asyncio.timeout(60):
            while await reader.read(65536):
                pass
        return True
    except OSError:
        return True
    finally:
        writer.close()


def _deep(levels: int) -> bytes:
    return b"\x91" * levels + b"\xc0"


def _batch(**fields: object) -> bytes:
    return pack(msgspec.msgpack.encode({"type": "batch"} | fields))


def _place(**fields: object) -> bytes:
    """A batch with one request; `fields` may be of any type."""
    request = PlaceRequest("r", "t", "m", 1, 1)
    named = {name: getattr(request, name) for name in request.__struct_fields__} | fields
    return _batch(requests=[list(named.values())])


def _release(*released: Released) -> bytes:
    return pack(msgspec.msgpack.encode(ClientBatch(released=list(released))))


async def _answers(reader: asyncio.StreamReader, count: int) -> Answers:
    """The first `count` decisions."""
    found = Answers([], [])
    while len(found.placed) + len(found.refused) < count:
        answer = msgspec.msgpack.decode(await read_frame(reader), type=ToClient)
        if isinstance(answer, Answers):
            found.placed += answer.placed
            found.refused += answer.refused
    return found


async def test_hostile_frames_close_only_their_own_connection() -> None:
    async with service() as scheduler, agent(scheduler.port, replica()), client(scheduler.port) as api:
        await api.place(request())
        port = scheduler.port
        assert await _closed(port, b"GET / HTTP/1.1\r\n\r\n")
        assert await _closed(port, struct.pack(">I", 2**32 - 1))
        assert await _closed(port, struct.pack(">I", 5000) + b"x" * 5000)
        assert await _closed(port, pack(os.urandom(300)))
        assert await _closed(port, pack(b""))
        assert await _closed(port, pack(msgspec.msgpack.encode(ClientHello("wrong", "x", WIRE_VERSION))))
        assert await _closed(port, pack(msgspec.msgpack.encode(ClientHello(TOKEN, "", WIRE_VERSION))))
        assert await _closed(port, pack(msgspec.msgpack.encode(ClientHello(TOKEN, "x" * 500, WIRE_VERSION))))
        assert await _closed(port, _place())
        assert await _closed(port, HELLO, struct.pack(">I", 5 * 1024 * 1024))
        assert await _closed(port, HELLO, pack(os.urandom(1000)))
        assert await _closed(port, HELLO, pack(_deep(100_000)))
        assert await _closed(port, HELLO, pack(b"\x81\xa4type\xa9heartbeat"))
        assert await _closed(port, HELLO, HELLO)
        assert await _closed(port, HELLO, _place(prompt_tokens="many"))
        assert await _closed(port, HELLO, _batch(requests=[["r"]]))
        assert await _closed(port, HELLO, _batch(progress=[["r"], ["host/r0"], ["many"]]))
        assert await _closed(port, HELLO, _batch(released={"r": 1}))
        second = await api.place(request())
        api.release(Released(second.request_id, second.replica_id))


async def test_a_large_first_heartbeat_may_come_with_the_greeting() -> None:
    hello = pack(msgspec.msgpack.encode(AgentHello(TOKEN, "agent-1")))
    first = pack(msgspec.msgpack.encode(beat(*(replica(f"host/r{n}") for n in range(40)))))
    assert len(first) > HELLO_MAX_BYTES
    async with service() as scheduler:
        _, writer = await asyncio.open_connection("127.0.0.1", scheduler.port)
        writer.write(hello + first)
        await until(lambda: len(scheduler.state.fleet.replicas) == 40)
        writer.close()


async def test_absurd_figures_are_bounded() -> None:
    async with service() as scheduler, agent(scheduler.port, replica()), client(scheduler.port) as api:
        await api.place(request())
        reader, writer = await asyncio.open_connection("127.0.0.1", scheduler.port)
        writer.write(HELLO)
        await read_frame(reader)
        writer.write(_place(deadline_s=float("nan"), prompt_tokens=-5, blocks=list(range(100_000))))
        writer.write(_place(request_id="q", deadline_s=float("inf"), output_tokens=2**62))
        writer.write(_release(Released("never", "nowhere")))
        writer.write(_batch(progress=[["a", "b"], ["host/r0"], [2**62, -5, 3]], cancelled=["never"]))
        writer.write(b"\x00\x00\x00")
        await _answers(reader, 2)
        writer.close()
        assert len(scheduler.state.fleet.replicas["host/r0"].prefix) <= 4096
        assert await api.place(request())


async def test_figures_that_are_none_end_nobody_elses_decisions() -> None:
    nan, inf = float("nan"), float("inf")
    broken = [capacity(), capacity(), capacity()]
    broken[0] = msgspec.structs.replace(broken[0], step_base_s=nan)
    broken[1] = msgspec.structs.replace(broken[1], step_per_kv_token_s=inf)
    broken[2] = msgspec.structs.replace(broken[2], step_base_s=0.0, step_per_seq_s=0.0)
    bad = [
        replica(f"bad/r{n}", capacity=each, targets=Targets(2.0, 0.0 if n == 2 else 0.1))
        for n, each in enumerate(broken)
    ]
    unmeasured = replica("host/r0", kv_usage=nan, running=-5)
    async with (
        service() as scheduler,
        agent(scheduler.port, unmeasured),
        agent(scheduler.port, *bad, name="agent-2"),
        client(scheduler.port) as api,
    ):
        assert (await api.place(request())).replica_id == "host/r0"
        await until(lambda: "agent-2" in scheduler._agents)
        reader, writer = await asyncio.open_connection("127.0.0.1", scheduler.port)
        writer.write(HELLO)
        await read_frame(reader)
        ages = (nan, inf, -inf, 1e300)
        queued = [AnnouncedRequest(request(f"q{n}"), age) for n, age in enumerate(ages)]
        held = [_held(f"h{n}", age) for n, age in enumerate(ages)]
        greedy = TenantCounter("tenant-1", MODEL, 1e308)
        writer.write(pack(msgspec.msgpack.encode(Announce(held, queued, [greedy]))))
        answers = await _answers(reader, len(queued))
        assert len({each.request_id for each in [*answers.placed, *answers.refused]}) == len(queued)
        ended = [Released(each.request_id, each.replica_id, -5, -(2**60), 2**62) for each in answers.placed]
        ended += [Released(f"h{n}", "host/r0") for n in range(len(ages))]
        writer.write(_release(*ended))
        writer.close()
        placement = await api.place(request())
        assert placement.replica_id == "host/r0"
        assert placement.service < 1e12
        assert not scheduler._ticker.done()
        assert {name for name in scheduler.state.fleet.replicas} == {"host/r0"}


def _held(name: str, age_s: float) -> AnnouncedPlacement:
    return AnnouncedPlacement(
        name, "tenant-1", MODEL, "host/r0", "boot-1", 2**62, -5, 2**62, produced=-1, age_s=age_s
    )


@pytest.mark.promise(29)
async def test_a_client_that_does_not_read_is_cut_off_and_blocks_nobody() -> None:
    async with service() as scheduler, agent(scheduler.port, replica(slots=4)), client(scheduler.port) as api:
        await api.place(request())
        _, writer = await asyncio.open_connection("127.0.0.1", scheduler.port, limit=1024)
        writer.write(HELLO)
        sent = 0
        try:
            while sent < 400_000 and len(scheduler._clients) == 2:
                filler = "x" * 2000
                writer.write(
                    b"".join(_place(request_id=f"{sent + n}{filler}", deadline_s=0) for n in range(50))
                )
                sent += 50
                await asyncio.wait_for(writer.drain(), 60)
                if sent % 1000 == 0:
                    placement = await asyncio.wait_for(api.place(request()), 60)
                    api.release(Released(placement.request_id, placement.replica_id))
        except OSError:
            pass
        finally:
            writer.close()
        await until(lambda: len(scheduler._clients) == 1)
        assert api.connected


async def test_a_stranger_that_says_nothing_is_turned_away(monkeypatch) -> None:
    monkeypatch.setattr("scheduler.accept.FIRST_BYTE_S", 0.1)
    monkeypatch.setattr("scheduler.sessions.HELLO_TIMEOUT_S", 0.1)
    async with service() as scheduler:
        reader, writer = await asyncio.open_connection("127.0.0.1", scheduler.port)
        assert await reader.read() == b""
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", scheduler.port)
        writer.write(b"\0")
        welcome = msgspec.msgpack.decode(await read_frame(reader), type=Welcome)
        assert welcome.error == "no greeting in time"
        assert await reader.read() == b""
        writer.close()
        await until(lambda: not scheduler._door.sessions)


async def test_made_up_models_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_REFUSED_MODELS", 5)
    async with service(grace_s=0.0) as scheduler, client(scheduler.port) as api:
        await api.fresh_snapshot()
        for n in range(20):
            with pytest.raises(Refused, match="no host serves"):
                await api.place(request(model=f"made-up-{n}"))
        await until(lambda: not scheduler.state.queues)
    shown = generate_latest().decode()
    assert {f"made-up-{n}" for n in range(20) if f'"made-up-{n}"' in shown} == {
        f"made-up-{n}" for n in range(5)
    }


async def test_a_client_of_another_release_is_refused_with_the_reason() -> None:
    async with service() as scheduler:
        for hello in (ClientHello(TOKEN, "old"), ClientHello(TOKEN, "new", WIRE_VERSION + 1)):
            reader, writer = await asyncio.open_connection("127.0.0.1", scheduler.port)
            writer.write(pack(msgspec.msgpack.encode(hello)))
            welcome = msgspec.msgpack.decode(await read_frame(reader), type=Welcome)
            assert f"version {WIRE_VERSION} of the wire, this process {hello.wire}" in welcome.error
            assert await reader.read() == b""
            writer.close()
        assert not scheduler._clients


async def test_a_client_turns_away_from_a_scheduler_of_another_release() -> None:
    async def old_scheduler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader)
        writer.write(pack(msgspec.msgpack.encode({"type": "welcome", "epoch": "old"})))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(old_scheduler, "127.0.0.1", 0)
    async with server, client(server.sockets[0].getsockname()[1]) as api:
        await until(lambda: "version 1 of the wire" in api.denied)
        assert not api.connected
