"""What TLS between API processes and engines costs: `python -m bench.engine_tls`.

One simulated engine without and one with TLS, and a TLS listener in a process of its own in front of the first, as an
agent could be. The gateway's client asks them one after the other in changing order, so that all see the same machine.
For each way: milliseconds to the first event (median and 99th percentile), with connections kept and with a new one for
each request, and processor time of the client and of what answers it, per request.
"""

import argparse
import asyncio
import multiprocessing
import random
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

import msgspec
import uvloop

from bench.processes import cpu_s
from core.child import free_port
from core.errors import EngineFailed
from gateway.engine import HttpEngines
from workers.engine_tls import EngineTls

BODY = msgspec.json.encode(
    {"model": "penstock/tiny", "prompt": "hello", "max_tokens": 32, "stream": True, "ignore_eos": True}
)


class Way(msgspec.Struct):
    """One way to an engine, and what was measured of it."""

    name: str
    url: str
    authority: bytes
    kept: bool
    pids: tuple[int, ...]
    """Processes that answer."""
    first_ms: list[float] = []
    client_s: float = 0.0
    server_s: float = 0.0


def start(port: int, *more: str) -> "subprocess.Popen[bytes]":
    """Start a simulated engine."""
    argv = [
        sys.executable,
        "-m",
        "sim.engine",
        "--port",
        str(port),
        "--speedup",
        "1000",
        "--noise",
        "0",
        *more,
    ]
    return subprocess.Popen(argv, stdout=subprocess.DEVNULL)


async def ask(engines: HttpEngines, way: Way) -> None:
    """One request; notes its times."""
    began, cpu, served = time.perf_counter(), time.process_time(), _cpu_s(way.pids)
    response = await engines.open(way.url, "/v1/completions", BODY, (), authority=way.authority)
    first = 0.0

    def take(_: bytes) -> bool:
        nonlocal first
        first = first or time.perf_counter()
        return True

    await response.read_into(take)
    if not way.kept:
        await engines.close()
    way.first_ms.append((first - began) * 1000)
    way.client_s += time.process_time() - cpu
    way.server_s += _cpu_s(way.pids) - served


def _cpu_s(pids: tuple[int, ...]) -> float:
    return sum(map(cpu_s, pids))


def _relay(directory: Path, port: int, engine_port: int) -> None:
    tls = EngineTls(directory, b"bench", lambda: datetime.now(UTC))
    uvloop.run(relay(tls, port, engine_port))


async def relay(tls: EngineTls, port: int, engine_port: int) -> None:
    """Listen by TLS and pass all bytes on to an engine, until cancelled."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate_file, tls.key_file)

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", engine_port)
        await asyncio.gather(
            pass_on(reader, inner_writer), pass_on(inner_reader, writer), return_exceptions=True
        )

    async with await asyncio.start_server(serve, "127.0.0.1", port, ssl=context) as server:
        await server.serve_forever()


@asynccontextmanager
async def ways(directory: Path) -> AsyncIterator[list[Way]]:
    """All ways, when their engines answer."""
    tls = EngineTls(directory, b"bench", lambda: datetime.now(UTC))
    ports = free_port(), free_port(), free_port()
    plain = start(ports[0])
    secured = start(ports[1], "--ssl-keyfile", str(tls.key_file), "--ssl-certfile", str(tls.certificate_file))
    hop = multiprocessing.get_context("spawn").Process(target=_relay, args=(directory, ports[2], ports[0]))
    hop.start()
    at = [
        f"{scheme}://127.0.0.1:{port}" for scheme, port in zip(("http", "https", "https"), ports, strict=True)
    ]
    try:
        yield [
            Way("plain, kept", at[0], b"", True, (plain.pid,)),
            Way("plain, new", at[0], b"", False, (plain.pid,)),
            Way("TLS, kept", at[1], tls.authority, True, (secured.pid,)),
            Way("TLS, new", at[1], tls.authority, False, (secured.pid,)),
            Way("TLS listener before plain, kept", at[2], tls.authority, True, (plain.pid, hop.pid or 0)),
        ]
    finally:
        for process in (plain, secured, hop):
            process.terminate()
        for each in (plain.wait, secured.wait, hop.join):
            await asyncio.to_thread(each)


async def measure(requests: int) -> None:
    """Print the table."""
    with TemporaryDirectory() as directory:
        async with ways(Path(directory)) as all_ways:
            engines = {way.name: HttpEngines("") for way in all_ways}
            for way in all_ways:
                await _answers(engines[way.name], way)
            order, shuffled = random.Random(1), list(all_ways)
            for _ in range(requests):
                order.shuffle(shuffled)  # the engine's caches are warm for whoever comes next
                for way in shuffled:
                    await ask(engines[way.name], way)
            print(f"{'':34}{'p50 ms':>8}{'p99 ms':>8}{'client us':>11}{'server us':>11}")
            for way in all_ways:
                high = quantiles(way.first_ms, n=100)[98]
                each = 1e6 / requests
                print(
                    f"{way.name:34}{median(way.first_ms):8.2f}{high:8.2f}{way.client_s * each:11.0f}"
                    f"{way.server_s * each:11.0f}"
                )


async def _answers(engines: HttpEngines, way: Way) -> None:
    """Wait until a way answers, and forget what that took."""
    while True:
        try:
            await ask(engines, way)
        except EngineFailed:
            await asyncio.sleep(0.2)
            continue
        way.first_ms, way.client_s, way.server_s = [], 0.0, 0.0
        return


def main() -> None:
    """Run by the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=400, help="of each way")
    uvloop.run(measure(parser.parse_args().requests))


if __name__ == "__main__":
    main()
