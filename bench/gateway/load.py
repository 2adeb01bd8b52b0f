"""The load generator: a minimal HTTP client with low CPU cost, in closed and open loops."""

import asyncio
import json
import time
from dataclasses import dataclass, field

import httptools


class Connection(asyncio.Protocol):
    """A keep-alive connection with one request at a time."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.transport: asyncio.Transport | None = None
        self.done: asyncio.Future[None] | None = None
        self.size = self.reads = self.events = 0
        self.first_at = 0.0
        self.tail = b""
        self.body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.reads += 1
        self.parser.feed_data(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(ConnectionError("the server hung up"))

    def on_body(self, body: bytes) -> None:
        if not self.first_at:
            self.first_at = time.perf_counter()
        self.size += len(body)
        self.events += body.count(b"data: ")
        self.tail = body

    def on_message_complete(self) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_result(None)

    async def request(self, raw: bytes) -> tuple[int, bytes]:
        """Send a request and return the whole answer's status and last bytes."""
        self.done = asyncio.get_running_loop().create_future()
        self.size = self.reads = 0
        self.first_at = 0.0
        self.parser = httptools.HttpResponseParser(self)
        self.transport.write(raw)
        await self.done
        return self.parser.get_status_code(), self.tail


@dataclass
class Target:
    """A server to measure, and the requests for it."""

    name: str
    port: int
    key: str = ""
    pid: int = 0
    refused: int = 0
    idle: list[Connection] = field(default_factory=list)

    def raw(self, **fields: object) -> bytes:
        """Return a request as bytes."""
        body = json.dumps(
            {
                "model": "qwen3.5-397b",
                "messages": [
                    {"role": "system", "content": "You are a helpful assistant. " * 8},
                    {"role": "user", "content": "Tell me something about rivers and turbines. " * 8},
                ],
                **fields,
            }
        ).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {self.key}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    async def connection(self) -> Connection:
        """Return an idle connection or a new one."""
        while self.idle:
            connection = self.idle.pop()
            if not connection.transport.is_closing():
                return connection
        _, protocol = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", self.port)
        return protocol

    async def ask(self, raw: bytes, stream: bool) -> float:
        """Send one request and return its seconds; a refusal for lack of capacity is retried (counted in
        `refused`).

        Raises AssertionError for any other answer that is not a success.
        """
        connection = await self.connection()
        start = time.perf_counter()
        status, tail = await connection.request(raw)
        while status == 503:
            self.refused += 1
            await asyncio.sleep(0.2)
            status, tail = await connection.request(raw)
        took = time.perf_counter() - start
        assert status == 200, f"{self.name}: {status} {tail[:300]!r}"
        assert not stream or tail.endswith(b"data: [DONE]\n\n") or not tail, f"{self.name}: {tail[-200:]!r}"
        self.idle.append(connection)
        return took


async def closed_loop(target: Target, raw: bytes, *, concurrency: int, requests: int, stream: bool) -> float:
    """Send `requests` requests with `concurrency` callers, and return the seconds it took."""
    left = requests

    async def caller() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await target.ask(raw, stream)

    start = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(concurrency)))
    return time.perf_counter() - start


async def open_loop(target: Target, raw: bytes, *, rate: float, seconds: float) -> list[float]:
    """Send requests at constant intervals regardless of the answers, and return the seconds of each."""
    loop = asyncio.get_running_loop()
    begin = loop.time() + 0.05
    tasks = []
    for index in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, begin + index / rate - loop.time()))
        tasks.append(asyncio.create_task(target.ask(raw, False)))
    return sorted(await asyncio.gather(*tasks))


class Streams:
    """Many paced streams, opened in small groups and kept open during a measurement."""

    def __init__(self, target: Target, raw: bytes, count: int) -> None:
        self.target, self.raw, self.count = target, raw, count
        self.connections: list[Connection] = []
        self.tasks: list[asyncio.Task[tuple[int, bytes]]] = []
        self.refused = 0

    async def begin(self, per_s: float) -> None:
        """Open all streams, `per_s` per second, and wait until each has received its first events."""
        for _ in range(self.count):
            connection = await self.target.connection()
            connection.events = 0
            self.connections.append(connection)
            self.tasks.append(asyncio.create_task(self._ask(connection)))
            await asyncio.sleep(1 / per_s)
        for _ in range(400):
            if all(connection.events > 2 for connection in self.connections):
                return
            await asyncio.sleep(0.05)
        quiet = [connection for connection in self.connections if connection.events <= 2]
        raise AssertionError(
            f"{self.target.name}: {len(quiet)} streams did not begin: {quiet[0].tail[:300]!r}"
        )

    async def _ask(self, connection: Connection) -> tuple[int, bytes]:
        """Retry until admitted: a process at its limit correctly refuses some requests with 503."""
        while True:
            status, tail = await connection.request(self.raw)
            if status != 503:
                return status, tail
            self.refused += 1
            await asyncio.sleep(0.3)

    @property
    def events(self) -> int:
        """Number of events received so far."""
        return sum(connection.events for connection in self.connections)

    async def end(self) -> None:
        """Close all streams."""
        for connection in self.connections:
            connection.transport.close()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.target.idle.clear()
