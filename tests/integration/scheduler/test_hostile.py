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
    Announce,
    AnnouncedPlacement,
    AnnouncedRequest,
    ClientHello,
    TenantCounter,
    Welcome,
)
from scheduler.sessions import HELLO_MAX_BYTES
from scheduler.wire import Released
from tests.support.scheduling import MODEL, TOKEN, agent, beat, capacity, client, replica, request, service
from tests.support.waiting import until
from workers.wire import AgentHello, Targets

HELLO = pack(msgspec.msgpack.encode(ClientHello(TOKEN, "stranger")))


async def _closed(port: int, *sent: bytes) -> bool:
    """Whether the scheduler hangs up on who sends this."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for data in sent:
            writer.write(data)
        async with asyncio.timeout(20):
            while await reader.read(65536):
                pass
        return True
    except OSError:
        return True
    finally:
        writer.close()


def _deep(levels: int) -> bytes:
    return b"\x91" * levels + b"\xc0"


def _place(**fields: object) -> bytes:
    body = {
        "type": "place",
        "request_id": "r",
        "tenant_id": "t",
        "model": "m",
        "prompt_tokens": 1,
        "output_tokens": 1,
    }
    return pack(msgspec.msgpack.encode(body | fields))


async def test_hostile_frames_close_only_their_own_connection() -> None:
    async with service() as scheduler, agent(scheduler.port, replica()), client(scheduler.port) as api:
        await api.place(request())
        port = scheduler.port
        assert await _closed(port, b"GET / HTTP/1.1\r\n\r\n")
        assert await _closed(port, struct.pack(">I", 2**32 - 1))
        assert await _closed(port, struct.pack(">I", 5000) + b"x" * 5000)
        assert await _closed(port, pack(os.urandom(300)))
        assert await _closed(port, pack(b""))
        assert await _closed(port, pack(msgspec.msgpack.encode(ClientHello("wrong", "x"))))
        assert await _closed(port, pack(msgspec.msgpack.encode(ClientHello(TOKEN, ""))))
        assert await _closed(port, pack(msgspec.msgpack.encode(ClientHello(TOKEN, "x" * 500))))
        assert await _closed(port, _place())
        assert await _closed(port, HELLO, struct.pack(">I", 5 * 1024 * 1024))
        assert await _closed(port, HELLO, pack(os.urandom(1000)))
        assert await _closed(port, HELLO, pack(_deep(100_000)))
        assert await _closed(port, HELLO, pack(b"\x81\xa4type\xa9heartbeat"))
        assert await _closed(port, HELLO, HELLO)
        assert await _closed(port, HELLO, _place(prompt_tokens="many"))
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
        writer.write(pack(msgspec.msgpack.encode(Released("never", "nowhere"))))
        writer.write(b"\x00\x00\x00")
        answers = []
        while len(answers) < 2:
            answer = msgspec.msgpack.decode(await read_frame(reader))
            if answer["type"] in ("refused", "placed"):
                answers.append(answer)
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
        answered = set()
        while len(answered) < len(queued):
            answer = msgspec.msgpack.decode(await read_frame(reader))
            if answer["type"] in ("refused", "placed"):
                answered.add(answer["request_id"])
                if answer["type"] == "placed":
                    done = Released(answer["request_id"], answer["replica_id"], -5, -(2**60), 2**62)
                    writer.write(pack(msgspec.msgpack.encode(done)))
            elif answer["type"] == "welcome":
                continue
            writer.write(
                b"".join(pack(msgspec.msgpack.encode(Released(f"h{n}", "host/r0"))) for n in range(len(ages)))
            )
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
                await asyncio.wait_for(writer.drain(), 20)
                if sent % 1000 == 0:
                    placement = await asyncio.wait_for(api.place(request()), 20)
                    api.release(Released(placement.request_id, placement.replica_id))
        except OSError:
            pass
        finally:
            writer.close()
        await until(lambda: len(scheduler._clients) == 1)
        assert api.connected


async def test_a_stranger_that_says_nothing_is_turned_away(monkeypatch) -> None:
    monkeypatch.setattr("scheduler.sessions.HELLO_TIMEOUT_S", 0.1)
    async with service() as scheduler:
        reader, writer = await asyncio.open_connection("127.0.0.1", scheduler.port)
        welcome = msgspec.msgpack.decode(await read_frame(reader), type=Welcome)
        assert welcome.error == "no greeting in time"
        assert await reader.read() == b""
        writer.close()
        await until(lambda: not scheduler._sessions)


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
