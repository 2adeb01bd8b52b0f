"""The clients of a sustained load, a process of its own: many open streams, and new requests at a constant rate.

Reads one JSON line of options (`Options`), and writes one of counts (`Counts`) every SAMPLE_S seconds and at the end.
"""

import asyncio
import json
import random
import re
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

import msgspec
import uvloop

from bench.gateway.connection import Connection
from bench.gateway.load import Client, Target, quantile
from bench.gateway.mock_engine import EACH

SAMPLE_S = 5.0
SHORT_TOKENS = 16
"""Output tokens of requests that are no stream."""
RETRY_S = 0.2
"""Seconds after which a refused request is sent again."""
END_TIMEOUT_S = 60.0
"""Seconds that running requests get at the end beyond the longest stream."""
_CODE = re.compile(rb'"code": ?"([a-z_]+)"')


class Options(msgspec.Struct, frozen=True):
    """What to send."""

    target: Target
    streams: int
    """Streams that are open at the same time."""
    events_per_s: float
    """Of each stream."""
    requests_per_s: float
    """New requests, streams included."""
    seconds: float
    stream_s: tuple[float, float]
    """Shortest and longest time for which a stream is open; drawn uniformly."""
    seed: int


class Counts(msgspec.Struct):
    """What happened since the start."""

    at_s: float = 0.0
    open_streams: int = 0
    started: int = 0
    """Requests that were sent for the first time."""
    finished: int = 0
    tokens: int = 0
    """Output tokens of finished requests, as their usage says."""
    events: int = 0
    """Events with a token that streams received."""
    refused: dict[str, int] = {}
    """Refusals by status and code; the request was sent again."""
    errors: dict[str, int] = {}
    """Everything else that is not a whole answer."""
    late_ms: dict[str, float] = {}
    """How far events came behind the engine since the last sample: p50, p99, max."""
    ttft_ms: dict[str, float] = {}
    """The same of the time to the first token of requests that began since the last sample."""
    done: bool = False


@dataclass
class _Since:
    """Measured since the last sample."""

    delays_us: list[int]
    ttft_s: list[float]


class Load:
    """Keeps the streams open and sends requests at the rate."""

    def __init__(self, given: Options) -> None:
        self._given = given
        self._client = Client(given.target)
        self._rng = random.Random(given.seed)
        self._distance_ms = round(1000 / given.events_per_s)
        self._short = self._client.raw(max_tokens=SHORT_TOKENS)
        self._streams: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._since = _Since([], [])
        self._refused: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._streaming = 0
        self._ended_events = 0
        self.counts = Counts()

    async def run(self) -> None:
        """Send for the given time, then wait for what still runs."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        sampler = asyncio.create_task(self._sample(begin))
        for number in range(int(self._given.seconds * self._given.requests_per_s)):
            await asyncio.sleep(max(0.0, begin + number / self._given.requests_per_s - loop.time()))
            self.counts.started += 1
            is_stream = self._streaming < self._given.streams
            self._streaming += is_stream
            task = asyncio.create_task(self._stream() if is_stream else self._one(self._short, SHORT_TOKENS))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if self._tasks:
            _, hung = await asyncio.wait(set(self._tasks), timeout=self._given.stream_s[1] + END_TIMEOUT_S)
            if hung:
                self._errors["unanswered at the end"] += len(hung)
        sampler.cancel()
        self.counts.done = True
        self._write(loop.time() - begin)

    async def _stream(self) -> None:
        seconds = self._rng.uniform(*self._given.stream_s)
        tokens = max(int(seconds * self._given.events_per_s), 2)
        raw = self._client.raw(
            stream=True,
            max_tokens=tokens,
            seed=EACH + self._distance_ms,
            stream_options={"include_usage": True},
        )
        try:
            await self._one(raw, tokens, stamps=True)
        finally:
            self._streaming -= 1

    async def _one(self, raw: bytes, tokens: int, *, stamps: bool = False) -> None:
        """Send a request until it is admitted; count its end."""
        try:
            while not await self._answered(raw, tokens, stamps=stamps):  # noqa: ASYNC110 - retries
                await asyncio.sleep(RETRY_S)
        except (OSError, ConnectionError) as error:
            self._errors[f"{type(error).__name__}: {error}"] += 1

    async def _answered(self, raw: bytes, tokens: int, *, stamps: bool) -> bool:
        """Send a request once; False when it was refused for lack of capacity."""
        began = time.perf_counter()
        connection = await self._client.connection()
        connection.clear()
        connection.stamps = stamps
        if stamps:
            self._streams.add(connection)
        try:
            status = await connection.request(raw)
        finally:
            self._streams.discard(connection)
            self._ended_events += connection.seen
        self._client.idle.append(connection)
        if status in (429, 503):
            code = _CODE.search(bytes(connection.body))
            self._refused[f"{status} {code[1].decode() if code else ''}".strip()] += 1
            return False
        if status != 200:
            self._errors[f"status {status}: {bytes(connection.body[:120])!r}"] += 1
            return True
        self._since.delays_us += connection.delays_us
        if connection.first_at:
            self._since.ttft_s.append(connection.first_at - began)
        counted = re.findall(rb'"completion_tokens": ?(\d+)', connection.usage)
        if not counted or int(counted[-1]) != tokens:
            self._errors[f"an answer of {counted[-1:]!r} tokens, {tokens} were asked for"] += 1
        elif stamps and connection.seen != tokens:
            self._errors["a stream lost events"] += 1
        else:
            self.counts.finished += 1
            self.counts.tokens += tokens
        return True

    async def _sample(self, begin: float) -> None:
        loop = asyncio.get_running_loop()
        number = 0
        while True:
            number += 1
            await asyncio.sleep(max(0.0, begin + number * SAMPLE_S - loop.time()))
            for connection in self._streams:
                delays, connection.delays_us = connection.delays_us, []
                self._since.delays_us += delays
            self._write(loop.time() - begin)

    def _write(self, at_s: float) -> None:
        counts, since = self.counts, self._since
        counts.at_s = round(at_s, 2)
        counts.open_streams = sum(1 for each in self._streams if each.first_at)
        counts.events = self._ended_events + sum(each.seen for each in self._streams)
        counts.refused, counts.errors = dict(self._refused), dict(self._errors)
        counts.late_ms = _quantiles(sorted(since.delays_us), 1e-3)
        counts.ttft_ms = _quantiles(sorted(since.ttft_s), 1e3)
        self._since = _Since([], [])
        sys.stdout.write(msgspec.json.encode(counts).decode() + "\n")
        sys.stdout.flush()


def _quantiles(ordered: list[float] | list[int], scale: float) -> dict[str, float]:
    shares = {"p50": 0.5, "p99": 0.99, "max": 1.0} if ordered else {}
    return {name: round(quantile(ordered, share) * scale, 2) for name, share in shares.items()}


async def _main() -> None:
    given = msgspec.convert(json.loads(sys.stdin.readline()), Options)
    with suppress(asyncio.CancelledError):
        await Load(given).run()


if __name__ == "__main__":
    uvloop.run(_main())
