"""The least that a process in Python can do between a client and an engine: it reads bytes and writes them on.

It parses nothing, counts nothing and knows no HTTP. What a gateway costs more than this is its own work; what it costs
less than another gateway cannot be below this.
"""

import argparse
import asyncio
from typing import cast

import uvloop

from api.serve import bind


class Upstream(asyncio.Protocol):
    """The connection to the engine that belongs to one of a client."""

    def __init__(self, client: asyncio.Transport) -> None:
        self.data_received = client.write  # type: ignore[method-assign] # no Python frame per read
        self._client = client

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the client's connection too."""
        self._client.close()


class Downstream(asyncio.Protocol):
    """The connection of a client."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._engine: asyncio.Transport | None = None
        self._early: list[bytes] = []
        self._opening: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connect to the engine."""
        self._opening = asyncio.get_running_loop().create_task(self._open(cast(asyncio.Transport, transport)))

    def data_received(self, data: bytes) -> None:
        """Write on, or keep what arrives before the engine's connection is open."""
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
        transport, _ = await loop.create_connection(lambda: Upstream(client), "127.0.0.1", self._port)
        self._engine = transport
        transport.writelines(self._early)
        self._early.clear()


async def serve(port: int, engine: int) -> None:
    """Serve until the process ends."""
    server = await asyncio.get_running_loop().create_server(
        lambda: Downstream(engine), sock=bind("127.0.0.1", port)
    )
    await server.serve_forever()


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--port", type=int, required=True)
    arguments.add_argument("--engine", type=int, required=True, help="port of the engine")
    given = arguments.parse_args()
    uvloop.run(serve(given.port, given.engine))


if __name__ == "__main__":
    main()
