"""The load generator, a process of its own: reads jobs as JSON lines, runs them one by one and writes their results.

A job samples the CPU clocks of the measured processes itself, at the beginning and at the end of what it measures, so
that nothing of its own preparation is counted.
"""

import asyncio
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import uvloop

from bench.gateway.connection import Connection
from bench.processes import cpu_by_group, rss_by_group

SETTLE_S = 1.2
"""Seconds after the last answer that still belong to a measurement of requests: settlement runs a little later."""
RETRY_S = 0.2
"""Seconds after which a refused request is sent again."""
_TOKENS = re.compile(rb'"completion_tokens": ?(\d+)')
_SYSTEM = "You are a helpful assistant. " * 8
_USER = "Tell me something about rivers and turbines. " * 8


class Target(msgspec.Struct):
    """A server to measure."""

    name: str
    port: int
    model: str
    key: str = ""
    path: str = "/v1/chat/completions"
    groups: dict[str, tuple[int, bool]] = {}
    """Processes by name (bench.processes.Groups)."""
    fields: dict[str, int] = {}
    """Fields of the body that only this target gets."""


@dataclass(frozen=True)
class Timed:
    """One answer."""

    ttft_s: float
    """From the request to the first token; 0 when not streamed."""
    e2e_s: float
    decode_s: float
    """From the first token to the end of the answer: the last event with text may hold many tokens."""
    tokens: int
    """Of the answer, as its usage says; 0 without usage."""
    gaps_s: Sequence[float] = ()
    """Between the reads of a stream."""


@dataclass
class Client:
    """Connections to one target."""

    target: Target
    refused: Counter[str] = field(default_factory=Counter)
    """Refusals for lack of capacity by code; their requests were sent again."""
    idle: list[Connection] = field(default_factory=list)

    def raw(self, *, prompt: str = _USER, **fields: object) -> bytes:
        """Return a request as bytes."""
        messages = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": prompt}]
        fields |= {"model": self.target.model, "messages": messages, **self.target.fields}
        body = json.dumps(fields).encode()
        head = (
            f"POST {self.target.path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {self.target.key or 'none'}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    async def connection(self) -> Connection:
        """Return an idle connection or a new one."""
        while self.idle:
            connection = self.idle.pop()
            if not connection.transport.is_closing():
                return connection
        loop = asyncio.get_running_loop()
        _, protocol = await loop.create_connection(Connection, "127.0.0.1", self.target.port)
        return protocol

    async def ask(self, raw: bytes, connection: Connection | None = None) -> Connection:
        """Send one request until it is admitted, and return its connection with the complete answer.

        Raises RuntimeError for an answer that is neither a success nor a refusal for lack of capacity.
        """
        connection = connection or await self.connection()
        while (status := await connection.request(raw)) in (429, 503):
            self.refused[_code(status, bytes(connection.body))] += 1
            await asyncio.sleep(RETRY_S)
            if connection.transport.is_closing():
                connection = await self.connection()
        if status != 200:
            raise RuntimeError(f"{self.target.name} answered {status}: {bytes(connection.body[:300])!r}")
        return connection

    async def timed(self, raw: bytes) -> "Timed":
        """Send one request until it is admitted, and return its times."""
        start = time.perf_counter()
        connection = await self.ask(raw)
        self.idle.append(connection)
        ended, counted = time.perf_counter(), _TOKENS.findall(connection.usage)
        return Timed(
            ttft_s=max(connection.first_at - start, 0.0),
            e2e_s=ended - start,
            decode_s=ended - connection.first_at if connection.first_at else 0.0,
            tokens=int(counted[-1]) if counted else 0,
            gaps_s=connection.gaps_s,
        )

    def close(self) -> None:
        """Close the idle connections."""
        for connection in self.idle:
            connection.transport.close()
        self.idle.clear()


def _code(status: int, body: bytes) -> str:
    try:
        return f"{status} {json.loads(body)['error']['code']}"
    except (ValueError, KeyError, TypeError):
        return str(status)


class Meter:
    """CPU of the target's processes from its creation to `read`."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._before = cpu_by_group(target.groups)
        self._start = time.perf_counter()

    def read(self) -> dict[str, object]:
        """Return `cpu_s` by process and the `window_s` that they were measured over."""
        after = cpu_by_group(self._target.groups)
        return {
            "cpu_s": {name: after[name] - self._before[name] for name in after},
            "window_s": time.perf_counter() - self._start,
        }


async def idle(client: Client, *, seconds: float) -> dict[str, object]:
    """Measure the processes without load."""
    meter = Meter(client.target)
    await asyncio.sleep(seconds)
    return meter.read()


async def closed_loop(
    client: Client, *, requests: int, concurrency: int, warm: int = 0, **fields: object
) -> dict[str, object]:
    """Send `requests` requests by `concurrency` callers, each its next one when the last is answered.

    Callers of paced streams begin spread over one second. CPU counts until SETTLE_S after the last answer.
    """
    raw = client.raw(**fields)
    if warm:
        await _callers(client, raw, warm, concurrency, spread_s=0.0)
    meter, start = Meter(client.target), time.perf_counter()
    timed = await _callers(client, raw, requests, concurrency, spread_s=1.0 if fields.get("seed") else 0.0)
    took = time.perf_counter() - start
    await asyncio.sleep(SETTLE_S)
    return {**meter.read(), "requests": requests, "took_s": took, **_times(timed)}


async def _callers(
    client: Client, raw: bytes, requests: int, concurrency: int, *, spread_s: float
) -> list[Timed]:
    left, timed = requests, []

    async def caller(number: int) -> None:
        nonlocal left
        await asyncio.sleep(spread_s * number / concurrency)
        while left > 0:
            left -= 1
            timed.append(await client.timed(raw))

    await asyncio.gather(*(caller(number) for number in range(concurrency)))
    return timed


async def open_loop(client: Client, *, rate: float, seconds: float, **fields: object) -> dict[str, object]:
    """Send requests at constant intervals regardless of the answers; the first second is not counted."""
    raw = client.raw(**fields)
    loop = asyncio.get_running_loop()
    begin = loop.time() + 0.05
    tasks: list[asyncio.Task[Timed]] = []
    meter: Meter | None = None
    for index in range(int(rate * (seconds + 1))):
        await asyncio.sleep(max(0.0, begin + index / rate - loop.time()))
        if meter is None and index >= rate:
            meter = Meter(client.target)
        tasks.append(asyncio.create_task(client.timed(raw)))
    timed = (await asyncio.gather(*tasks))[int(rate) :]
    return {**(meter or Meter(client.target)).read(), "requests": len(timed), **_times(timed)}


def _times(timed: list[Timed]) -> dict[str, object]:
    tpot = [each.decode_s / (each.tokens - 1) for each in timed if each.tokens > 1]
    times = {
        "ttft": [each.ttft_s for each in timed],
        "e2e": [each.e2e_s for each in timed],
        "tpot": tpot,
        "gap": [gap for each in timed for gap in each.gaps_s],
    }
    return {
        f"{name}_p{percent}_s": quantile(sorted(values), percent / 100)
        for name, values in times.items()
        for percent in ((50, 99) if values else ())
    }


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the quantile of values in ascending order."""
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


async def mixed(
    client: Client,
    *,
    requests: int,
    concurrency: int,
    seed: int,
    words: tuple[int, int],
    tokens: tuple[int, int],
) -> dict[str, object]:
    """Send streamed requests with prompts of their own and answers of different lengths, in a closed loop.

    Lengths are drawn uniformly between the two figures. The same `seed` gives the same lengths; the words differ, so
    that no prompt finds another one in the engine's prefix cache. `load_cpu_s` is the CPU of this process.
    """
    lengths, text = random.Random(seed), random.Random()
    options = {
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
    }
    raws = [
        client.raw(
            prompt=_words(text, lengths.randint(*words)), max_tokens=lengths.randint(*tokens), **options
        )
        for _ in range(requests)
    ]
    timed: list[Timed] = []

    async def caller() -> None:
        while raws:
            timed.append(await client.timed(raws.pop()))

    meter, start, own = Meter(client.target), time.perf_counter(), time.process_time()
    await asyncio.gather(*(caller() for _ in range(concurrency)))
    took, own = time.perf_counter() - start, time.process_time() - own
    await asyncio.sleep(SETTLE_S)
    counts = {"requests": len(timed), "tokens": sum(each.tokens for each in timed), "took_s": took}
    counts["load_cpu_s"] = own
    return {**meter.read(), **counts, **_times(timed)}


def _words(rng: random.Random, count: int) -> str:
    return " ".join("".join(rng.choices("abcdefghilmnoprstuw", k=4)) for _ in range(count))


class Streams:
    """Many paced streams that are open at the same time."""

    def __init__(self, client: Client, raw: bytes, count: int, *, stamps: bool) -> None:
        self._client, self._raw, self._count, self._stamps = client, raw, count, stamps
        self.connections: list[Connection] = []
        self._tasks: list[asyncio.Task[Connection]] = []

    async def begin(self, per_s: float) -> None:
        """Open all streams, `per_s` per second, and wait until each has a token.

        Raises RuntimeError when some get none.
        """
        loop = asyncio.get_running_loop()
        start = loop.time()
        for number in range(self._count):
            connection = await self._client.connection()
            connection.stamps = self._stamps
            connection.clear()
            self.connections.append(connection)
            self._tasks.append(asyncio.create_task(self._client.ask(self._raw, connection)))
            await asyncio.sleep(max(0.0, start + (number + 1) / per_s - loop.time()))
        deadline = loop.time() + 60
        while quiet := [each for each in self.connections if not each.first_at]:
            if loop.time() > deadline:
                refused = dict(self._client.refused)
                raise RuntimeError(f"{len(quiet)} of {self._count} streams did not begin; refused: {refused}")
            await asyncio.sleep(0.05)

    @property
    def events(self) -> int:
        """Number of events received so far."""
        return sum(connection.events for connection in self.connections)

    async def end(self) -> None:
        """Close all streams and wait until the target has settled them."""
        for task in self._tasks:
            task.cancel()
        for connection in self.connections:
            connection.transport.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(SETTLE_S)


async def streams(
    client: Client,
    *,
    count: int,
    seconds: float,
    ramp_per_s: float,
    stamps: bool = False,
    warm: int = 0,
    **fields: object,
) -> dict[str, object]:
    """Measure while `count` paced streams are open and nothing but chunks is processed.

    `warm` streams of 100 tokens come before, as many at the same time.
    """
    if warm:
        await _callers(
            client, client.raw(stream=True, **(fields | {"max_tokens": 100})), warm, count, spread_s=1.0
        )
    load = Streams(client, client.raw(stream=True, **fields), count, stamps=stamps)
    try:
        await load.begin(ramp_per_s)
        await asyncio.sleep(0.3)
        for connection in load.connections:
            connection.delays_us = []
        meter, events = Meter(client.target), load.events
        await asyncio.sleep(seconds)
        found = {**meter.read(), "events": load.events - events}
        if not found["events"]:
            raise RuntimeError("the open streams got no event")
        if stamps:
            delays = sorted(delay for each in load.connections for delay in each.delays_us)
            found["lost"] = sum(each.position - each.seen for each in load.connections)
            found["late"] = sum(delay > 100_000 for delay in delays)
            for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
                found[f"delay_{name}_ms"] = quantile(delays, share) / 1e3
        return found
    finally:
        await load.end()


async def memory(
    client: Client, *, count: int, first: int, ramp_per_s: float, **fields: object
) -> dict[str, object]:
    """Measure the resident memory while `first` streams are open and silent, and while `count` more are.

    The first ones fill the memory that the process has kept from its start. How much that is differs from run to run by
    ten MiB, which would be 5 KiB for each of 2,000 streams.
    """
    await _callers(client, client.raw(max_tokens=1), 200, 16, spread_s=0.0)
    idle = rss_by_group(client.target.groups)
    raw = client.raw(stream=True, **fields)
    loads = [Streams(client, raw, each, stamps=False) for each in (first, count)]
    found = []
    try:
        for load in loads:
            await load.begin(ramp_per_s)
            await asyncio.sleep(2)
            found.append(rss_by_group(client.target.groups))
    finally:
        for load in loads:
            await load.end()
    before, after = found
    return {"rss_idle": idle, "rss_before": before, "rss_open": after, "streams": count}


JOBS: dict[str, Callable[..., Awaitable[dict[str, object]]]] = {
    "idle": idle, "closed_loop": closed_loop, "open_loop": open_loop, "mixed": mixed, "streams": streams,
    "memory": memory,
}  # fmt: skip


async def serve() -> None:
    """Run jobs from standard input until it ends. An exception is the result of its job; the next jobs still run."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        job = json.loads(line)
        client = Client(msgspec.convert(job["target"], Target))
        try:
            result = await JOBS[job["job"]](client, **job["options"])
        except Exception as error:  # noqa: BLE001 - it is the result
            result = {"error": f"{type(error).__name__}: {error}"}
        finally:
            client.close()
        result["refused"] = dict(client.refused)
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(serve())
