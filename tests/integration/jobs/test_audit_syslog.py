"""The audit log reaches a syslog receiver: each row at least once, in order, whatever breaks."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from admin.actor import system_actor
from admin.audit import record
from core import syslog
from core.db import Database
from core.errors import Unavailable
from core.settings import Settings
from jobs import audit_syslog
from jobs.work import seal
from tests.support.waiting import until


class Receiver:
    """A syslog receiver on TCP that keeps what it reads; it resets connections while `broken`."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.headers: list[str] = []
        self.broken = False
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while length := await reader.readuntil(b" "):
                message = await reader.readexactly(int(length))
                if self.broken:
                    linger = struct.pack("ii", 1, 0)  # so that the end is a reset
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    return
                header, _, text = message.decode("ascii").partition("] ")
                self.headers.append(header)
                self.rows.append(json.loads(text))
        except asyncio.IncompleteReadError:
            return  # the end: between messages, as the rows say that were read
        finally:
            writer.close()

    @property
    def numbers(self) -> list[int]:
        return [row["seq"] for row in self.rows]


@pytest.fixture
async def receiver() -> AsyncIterator[tuple[Receiver, Settings]]:
    found = Receiver()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        yield found, Settings.model_construct(audit_syslog_url=f"tcp://127.0.0.1:{port}")


async def act(database: Database, count: int, **after: object) -> None:
    async with database.system() as connection:
        for number in range(count):
            await record(
                connection, system_actor("test"), f"thing.act_{number}", tenant_id=None, object_kind="thing",
                object_id="Zoë", after=after,
            )  # fmt: skip
    await seal(database, Settings.model_construct())


async def test_every_row_arrives_once_while_nothing_breaks(
    database: Database, receiver: tuple[Receiver, Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, settings = receiver
    monkeypatch.setattr(audit_syslog, "BATCH", 3)
    await act(database, 7, name="x")
    assert await audit_syslog.send_audit(database, Settings.model_construct()) == 0
    total = await audit_syslog.send_audit(database, settings)
    assert found.numbers == list(range(1, total + 1))
    assert {f"thing.act_{number}" for number in range(7)} <= {row["action"] for row in found.rows}
    assert (found.rows[-1]["object_id"], found.rows[-1]["after"]) == ("Zoë", {"name": "x"})
    assert found.headers[-1].startswith("<109>1 ")
    action = found.rows[-1]["action"]
    assert found.headers[-1].endswith(f' penstock - {action} [meta sequenceId="{total}"')
    assert await audit_syslog.send_audit(database, settings) == 0
    assert found.connections == -(-total // 3)

    await act(database, 1, name="y" * audit_syslog.MAX_BYTES)
    assert await audit_syslog.send_audit(database, settings) == 1
    assert (found.rows[-1]["after"], found.rows[-1]["states_left_out"]) == (None, True)


async def test_what_a_broken_receiver_did_not_take_is_sent_again(
    database: Database, receiver: tuple[Receiver, Settings]
) -> None:
    found, settings = receiver
    await act(database, 4)
    found.broken = True
    with pytest.raises(Unavailable, match="did not take messages"):
        await audit_syslog.send_audit(database, settings)
    assert found.rows == []
    found.broken = False
    sent = await audit_syslog.send_audit(database, settings)
    assert found.numbers == list(range(1, sent + 1))
    await act(database, 1)
    nobody = Settings.model_construct(audit_syslog_url="tcp://127.0.0.1:1")
    with pytest.raises(Unavailable, match="did not take messages"):
        await audit_syslog.send_audit(database, nobody)
    assert await audit_syslog.send_audit(database, settings) == 1


async def test_a_crash_before_the_cursor_moves_repeats_and_loses_nothing(
    database: Database, receiver: tuple[Receiver, Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, settings = receiver
    await act(database, 3)
    real: Callable[..., Any] = syslog.send

    async def crash(*args: Any) -> None:
        await real(*args)
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(syslog, "send", crash)
        with pytest.raises(RuntimeError):
            await audit_syslog.send_audit(database, settings)
    first = list(found.numbers)
    assert await audit_syslog.send_audit(database, settings) == len(first)
    assert found.numbers == first * 2


async def test_datagrams(database: Database) -> None:
    got: list[bytes] = []

    class Protocol(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, addr: object) -> None:
            got.append(data)

    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        Protocol, local_addr=("127.0.0.1", 0)
    )
    try:
        port = transport.get_extra_info("sockname")[1]
        await act(database, 2)
        sent = await audit_syslog.send_audit(
            database, Settings.model_construct(audit_syslog_url=f"udp://127.0.0.1:{port}")
        )
        await until(lambda: len(got) == sent)
    finally:
        transport.close()
    assert [json.loads(one.partition(b"] ")[2])["seq"] for one in got] == list(range(1, sent + 1))
