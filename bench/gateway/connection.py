"""The load's HTTP client: one keep-alive connection with one request at a time, at a low cost of its own."""

import asyncio
import re
import time

import httptools

_CHOICE = re.compile(rb'"choices": ?\[\{')
"""An event with a choice: vLLM sends the first one, which holds the role, when the first token is there."""
_STAMP = re.compile(rb"(\d+)@(\d+)\"")
"""Position and microseconds in a chunk of the mock engine."""


class Connection(asyncio.Protocol):
    """One connection, and what arrived of its current answer."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.transport: asyncio.Transport | None = None
        self.done: asyncio.Future[None] | None = None
        self.stamps = False
        """Whether to read the position and the time of every chunk."""
        self.clear()

    def clear(self) -> None:
        """Forget the last answer."""
        self.events = self.position = self.seen = 0
        self.first_at = 0.0
        """When the first event with a choice arrived, by time.perf_counter(); its text may be empty."""
        self.delays_us: list[int] = []
        """How far each chunk came behind the engine."""
        self.gaps_s: list[float] = []
        """Seconds between reads with events, from the first event with a choice on."""
        self._event_at = 0.0
        self.body = bytearray()
        """The first bytes of the answer."""
        self.usage = b""
        """The last bytes that held a count of tokens."""
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(ConnectionError("the server closed the connection"))

    def on_body(self, body: bytes) -> None:
        self.events += body.count(b"data: ")
        if len(self.body) < 4096:
            self.body += body
        if self.first_at:
            now = time.perf_counter()
            self.gaps_s.append(now - self._event_at)
            self._event_at = now
        elif _CHOICE.search(body):
            self.first_at = self._event_at = time.perf_counter()
        if b'"completion_tokens":' in body:
            self.usage = body
        if self.stamps:
            self._read_stamps(body)

    def _read_stamps(self, body: bytes) -> None:
        now = time.monotonic_ns() // 1000
        data = self._rest + body
        end = data.rfind(b"\n\n") + 2
        if end == 1:
            self._rest = data
            return
        self._rest = data[end:]
        for position, sent in _STAMP.findall(data, 0, end):
            self.position = max(self.position, int(position))
            self.seen += 1
            self.delays_us.append(now - int(sent))

    def on_message_complete(self) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_result(None)

    async def request(self, raw: bytes) -> int:
        """Send a request and wait for the whole answer; return its status. Raises ConnectionError."""
        self.done = asyncio.get_running_loop().create_future()
        self.clear()
        self.parser = httptools.HttpResponseParser(self)
        self.transport.write(raw)
        await self.done
        return self.parser.get_status_code()
