"""Clients that do not read listings and downloads are cut; steady readers are not."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from api.customer.client_connection import EXTENSION
from api.read_pace import ReadPace
from gateway.open_requests import StreamTimeouts

RULE = StreamTimeouts(read_window_s=0.01, min_read_bytes_per_s=1000)
"""At least 10 bytes in each window."""


class Connection:
    """A connection that takes the bytes of `windows`, one number in each window, and then everything."""

    def __init__(self, waiting: int, windows: list[int]) -> None:
        self.left = waiting
        self.windows: Iterator[int] = iter(windows)
        self.asked = 0
        self.ended = asyncio.Event()
        self.aborted = False

    @property
    def unsent(self) -> int:
        self.asked += 1
        if (
            self.asked > 1 and self.asked % 2
        ):  # read at the end of a window, then again at the start of the next
            taken = next(self.windows, None)
            self.left = 0 if taken is None else self.left - taken
            if not self.left:
                self.ended.set()
        return self.left

    async def drain(self) -> None:
        await self.ended.wait()

    def abort(self) -> None:
        self.aborted = True
        self.ended.set()


async def serve(connection: Connection) -> list[Any]:
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.body", "body": b"page"})

    async def send(message: Any) -> None:
        sent.append(message)
        await connection.drain()

    async def receive() -> Any:
        raise AssertionError("nothing is read")

    scope = {"type": "http", "path": "/v1/models", "extensions": {EXTENSION: connection}}
    await asyncio.wait_for(ReadPace(app, RULE)(scope, receive, send), 30)
    return sent


@pytest.mark.parametrize(
    ("windows", "cut"), [([0], True), ([9], True), ([10, 10, 10, 0], True), ([10, 11, 500], False)]
)
async def test_a_client_must_take_a_part_of_what_waits_in_every_window(windows: list[int], cut: bool) -> None:
    connection = Connection(100_000, windows)
    assert len(await serve(connection)) == 1
    assert connection.aborted == cut


async def test_a_server_that_offers_no_connection_is_passed_through() -> None:
    called = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        called.append(scope["type"])

    await ReadPace(app, RULE)({"type": "http", "path": "/"}, None, None)  # type: ignore[arg-type]
    await ReadPace(app, RULE)({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
    assert called == ["http", "lifespan"]
