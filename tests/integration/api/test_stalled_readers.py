"""Clients that ask for a listing or a download and do not read it: they are cut, and little is kept for them."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.responses import Response, StreamingResponse

from api.customer.protocol import HeadLimitProtocol
from api.read_pace import ReadPace
from gateway.open_requests import StreamTimeouts
from tests.support.waiting import until

LISTING_BYTES = 8 * 1024 * 1024
"""More than the sockets of both sides keep."""
PART_BYTES = 256 * 1024
PARTS = 512


class Server:
    """A uvicorn server as the api role runs it, with a listing and a download."""

    def __init__(self, window_s: float) -> None:
        self.parts = 0
        app = FastAPI()
        app.add_middleware(ReadPace, rule=StreamTimeouts(read_window_s=window_s, min_read_bytes_per_s=1024))

        @app.get("/listing")
        async def listing() -> Response:
            return Response(b"x" * LISTING_BYTES)

        @app.get("/download")
        async def download() -> StreamingResponse:
            return StreamingResponse(self._parts())

        self.listener = socket.create_server(("127.0.0.1", 0))
        self.server = uvicorn.Server(
            uvicorn.Config(app, http=HeadLimitProtocol, loop="none", lifespan="off", log_config=None)
        )

    async def _parts(self) -> AsyncIterator[bytes]:
        for _ in range(PARTS):
            self.parts += 1
            yield b"x" * PART_BYTES

    @property
    def connections(self) -> int:
        return len(self.server.server_state.connections)

    async def settled(self) -> bool:
        return not self.connections and not self.server.server_state.tasks


@contextlib.asynccontextmanager
async def running(window_s: float) -> AsyncIterator[Server]:
    made = Server(window_s)
    serving = asyncio.create_task(made.server.serve(sockets=[made.listener]))
    try:
        yield made
    finally:
        made.server.should_exit = made.server.force_exit = True
        await serving
        made.listener.close()


async def ask(server: Server, path: str) -> socket.socket:
    """Send a request on a connection with a small receive buffer, and wait until the answer has begun."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, server.listener.getsockname())
    await loop.sock_sendall(client, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert (await asyncio.wait_for(loop.sock_recv(client, 12), 30)) == b"HTTP/1.1 200"
    return client


@pytest.mark.parametrize("path", ["/listing", "/download"])
async def test_a_client_that_stops_reading_is_cut(path: str) -> None:
    async with running(0.5) as server:
        clients = [await ask(server, path) for _ in range(5)]
        try:
            assert server.connections
            await until(server.settled, timeout_s=60)
            assert server.parts * PART_BYTES < 5 * LISTING_BYTES, "a download waits for its reader"
        finally:
            for client in clients:
                client.close()


async def test_a_reader_gets_all() -> None:
    async with running(60) as server:
        client = await ask(server, "/download")
        loop, got = asyncio.get_running_loop(), 0
        try:
            while got < PARTS * PART_BYTES:
                data = await asyncio.wait_for(loop.sock_recv(client, 1 << 20), 60)
                assert data, "the connection was cut"
                got += len(data)
        finally:
            client.close()
