"""The fault proxy: what passes, what is late, what waits, and what is cut."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from sim.fault_proxy import CLEAR, Conditions, FaultProxy


@pytest.fixture
async def proxy() -> AsyncIterator[FaultProxy]:
    """A proxy before a server that sends back every line."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(line)
        except ConnectionResetError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    made = FaultProxy("127.0.0.1", server.sockets[0].getsockname()[1])
    await made.start()
    yield made
    await made.close()
    server.close()
    await server.wait_closed()


Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Link]]


@pytest.fixture
async def link(proxy: FaultProxy) -> AsyncIterator[Connect]:
    """Connect through the proxy; closed afterwards."""
    made: list[Link] = []

    async def connect() -> Link:
        made.append(await asyncio.open_connection("127.0.0.1", proxy.port))
        return made[-1]

    yield connect
    for _, writer in made:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def said_back(link: Link, line: bytes) -> bytes:
    link[1].write(line)
    return await link[0].readline()


async def test_lines_pass_and_an_end_passes(proxy: FaultProxy, link: Connect) -> None:
    one = await link()
    assert await said_back(one, b"a\n") == b"a\n"
    one[1].write_eof()
    assert await one[0].read() == b""


async def test_latency_counts_for_both_directions(proxy: FaultProxy, link: Connect) -> None:
    one = await link()
    proxy.change(Conditions(latency_s=0.1))
    began = asyncio.get_running_loop().time()
    assert await said_back(one, b"a\n") == b"a\n"
    assert asyncio.get_running_loop().time() - began >= 0.2


async def test_a_narrow_link_takes_its_time(proxy: FaultProxy, link: Connect) -> None:
    one = await link()
    proxy.change(Conditions(bytes_per_s=10_000))
    began = asyncio.get_running_loop().time()
    assert len(await said_back(one, b"a" * 999 + b"\n")) == 1000
    assert asyncio.get_running_loop().time() - began >= 0.2


async def test_nothing_passes_a_silent_link_until_it_is_clear(proxy: FaultProxy, link: Connect) -> None:
    one = await link()
    proxy.change(Conditions(silent=True))
    waiting = asyncio.create_task(said_back(one, b"a\n"))
    other = await link()
    late = asyncio.create_task(said_back(other, b"b\n"))
    done, _ = await asyncio.wait({waiting, late}, timeout=0.2)
    assert not done
    proxy.change(CLEAR)
    assert [await waiting, await late] == [b"a\n", b"b\n"]


async def test_a_cut_resets_every_connection_and_new_ones_pass(proxy: FaultProxy, link: Connect) -> None:
    one = await link()
    assert await said_back(one, b"a\n") == b"a\n"
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        await one[0].readline()
    assert await said_back(await link(), b"b\n") == b"b\n"
