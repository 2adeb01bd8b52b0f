"""An ASGI middleware that cuts clients which do not read their answers, on the routes beside inference.

uvicorn waits without a bound for such a client, and keeps what it has written for it. The rule is that of the inference
routes (gateway/open_requests.py): at least `min_read_bytes_per_s` of what waits, measured over `read_window_s`. A
request ends only when the network has taken its answer. What one connection keeps meanwhile is bounded: a download
waits for the network before its next part, a listing has at most a page.
"""

import asyncio
import logging
from collections.abc import Awaitable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.customer.client_connection import EXTENSION, ClientConnection
from gateway.open_requests import StreamTimeouts

log = logging.getLogger(__name__)


class ReadPace:
    """Closes the connection of a client that takes too little of what waits for it."""

    def __init__(self, app: ASGIApp, rule: StreamTimeouts) -> None:
        self._app = app
        self._rule = rule

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; a server that does not offer its connection is not bounded."""
        connection: ClientConnection | None = scope.get("extensions", {}).get(EXTENSION)
        if scope["type"] != "http" or connection is None:
            await self._app(scope, receive, send)
            return

        async def paced(message: Message) -> None:
            if connection.unsent:
                await self._in_pace(connection, send(message), scope["path"])
            else:
                await send(message)

        await self._app(scope, receive, paced)
        if connection.unsent:
            await self._in_pace(connection, connection.drain(), scope["path"])

    async def _in_pace(self, connection: ClientConnection, writing: Awaitable[None], path: str) -> None:
        """Await `writing`, which ends early when the connection is cut."""
        task = asyncio.ensure_future(writing)
        window_s, least = self._rule.read_window_s, self._rule.min_read_bytes_per_s
        try:
            while True:
                before = connection.unsent
                done, _ = await asyncio.wait({task}, timeout=window_s)
                if done:
                    return task.result()
                if before - connection.unsent < least * window_s:
                    log.info("a client of %s does not read: its connection is closed", path)
                    connection.abort()
                    await task
                    return None
        finally:
            task.cancel()
