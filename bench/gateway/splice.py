"""The least that a process in Python can do between a client and an engine: it reads bytes and writes them on.

It parses nothing, counts nothing and knows no HTTP. What a gateway costs more than this is its own work; what it costs
less than another gateway cannot be below this.

With --ask it waits, before a request goes on, for what a metered platform has to ask (bench/gateway/asking.py).

With --meter it also does what a metered stream cannot do without: it asks the engine for running usage, parses HTTP
with httptools, reads the count of every event, removes it, and writes the event on as a chunk. It has no limits, no
errors, no deadlines and no slow clients. This is the floor of a metering gateway in Python.
"""

import argparse
import asyncio
import re
from collections.abc import Callable
from typing import cast

import httptools
import uvloop

from api.serve import bind
from bench.gateway.asking import Asking

_USAGE = b',"usage":{"prompt_tokens":'
_COUNT = b'"completion_tokens":'
_ASK = b',"stream_options":{"include_usage":true,"continuous_usage_stats":true}}'
_LENGTH = re.compile(rb"(?i)content-length: (\d+)")
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Upstream(asyncio.Protocol):
    """The connection to the engine that belongs to one of a client."""

    def __init__(self, client: asyncio.Transport) -> None:
        self.data_received = client.write  # type: ignore[method-assign] # no Python frame per read
        self._client = client

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the client's connection too."""
        self._client.close()


class MeteredUpstream(asyncio.Protocol):
    """The connection to the engine, whose events are counted. Serves one stream after the other."""

    def __init__(self, client: asyncio.Transport) -> None:
        self._client = client
        self._parser = httptools.HttpResponseParser(self)
        self.tokens = 0
        """Output tokens of the stream so far."""

    def data_received(self, data: bytes) -> None:
        """Parse a read; `on_body` is called for what is in it."""
        self._parser.feed_data(data)

    def on_headers_complete(self) -> None:
        """Begin the answer."""
        self.tokens = 0
        self._client.write(_HEAD)

    def on_body(self, data: bytes) -> None:
        """Count an event, and write it on without its usage."""
        start = data.rfind(_USAGE)
        if start > 0:
            count = data[data.find(_COUNT, start) + len(_COUNT) :].partition(b"}")[0]
            self.tokens = max(self.tokens, int(count.partition(b",")[0]))
            data = data[:start] + b"}\n\n"
        self._client.write(b"%x\r\n%b\r\n" % (len(data), data))

    def on_message_complete(self) -> None:
        """End the answer."""
        self._client.write(b"0\r\n\r\n")

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the client's connection too."""
        self._client.close()


def ask_for_usage(request: bytes) -> bytes:
    """Return a request that came in one read, with running usage asked for."""
    head, _, body = request.partition(b"\r\n\r\n")
    body = body.rstrip()[:-1] + _ASK
    return _LENGTH.sub(b"content-length: %d" % len(body), head) + b"\r\n\r\n" + body


def unchanged(request: bytes) -> bytes:
    """Return a request as it is."""
    return request


class Downstream(asyncio.Protocol):
    """The connection of a client."""

    def __init__(
        self,
        port: int,
        upstream: Callable[[asyncio.Transport], asyncio.Protocol],
        change: Callable[[bytes], bytes],
        asking: Asking | None,
    ) -> None:
        """`port`: of the engine. `change`: what is done to a read of the client. `asking`: what it waits for."""
        self._asking = asking
        self._port = port
        self._upstream = upstream
        self._change = change
        self._engine: asyncio.Transport | None = None
        self._early: list[bytes] = []
        self._opening: asyncio.Task[None] | None = None
        self._asked: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connect to the engine."""
        self._opening = asyncio.get_running_loop().create_task(self._open(cast(asyncio.Transport, transport)))

    def data_received(self, data: bytes) -> None:
        """Write on, or keep what arrives before the engine's connection is open."""
        if self._asking is None:
            self._pass_on(self._change(data))
        else:
            self._asked = asyncio.get_running_loop().create_task(self._ask(self._asking, data))

    async def _ask(self, asking: Asking, data: bytes) -> None:
        await asking.ask()
        self._pass_on(self._change(data))

    def _pass_on(self, data: bytes) -> None:
        if self._engine is None:
            self._early.append(data)
        else:
            self._engine.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the engine's connection too."""
        if self._opening is not None:
            self._opening.cancel()
        if self._engine is not None:
            self._engine.close()

    async def _open(self, client: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(lambda: self._upstream(client), "127.0.0.1", self._port)
        self._engine = transport
        transport.writelines(self._early)
        self._early.clear()


async def serve(port: int, engine: int, *, meter: bool, ask: tuple[str, str] | None) -> None:
    """Serve until the process ends. `ask`: URLs of Redis and PostgreSQL."""
    asking = await Asking.connect(*ask) if ask is not None else None
    upstream, change = (MeteredUpstream, ask_for_usage) if meter else (Upstream, unchanged)
    server = await asyncio.get_running_loop().create_server(
        lambda: Downstream(engine, upstream, change, asking), sock=bind("127.0.0.1", port)
    )
    await server.serve_forever()


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--port", type=int, required=True)
    arguments.add_argument("--engine", type=int, required=True, help="port of the engine")
    arguments.add_argument("--meter", action="store_true", help="count the tokens of streams")
    arguments.add_argument(
        "--ask", nargs=2, metavar=("REDIS", "POSTGRESQL"), help="URLs of servers to ask first"
    )
    given = arguments.parse_args()
    uvloop.run(serve(given.port, given.engine, meter=given.meter, ask=given.ask))


if __name__ == "__main__":
    main()
