"""An ASGI middleware that bounds the time in which the body of a request must arrive."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

BODY_TIMEOUT_S = 15.0
"""Seconds for a body to arrive; those of the routes that use this have at most a megabyte."""


class BodyDeadline:
    """Answers a request with 408 when its body has not arrived in time, whatever route reads it, and hangs up.

    The application receives http.disconnect, as when the client has closed the connection.
    """

    def __init__(
        self, app: App, timeout_s: float | None = None, longer: Mapping[str, float] | None = None
    ) -> None:
        """`timeout_s`: None = BODY_TIMEOUT_S. `longer`: seconds by path, for routes that take large files."""
        self._app = app
        self._timeout_s = timeout_s
        self._longer = longer or {}

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one request; other scopes than HTTP are passed on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        usual_s = BODY_TIMEOUT_S if self._timeout_s is None else self._timeout_s
        body = _Body(receive, send, self._longer.get(scope["path"], usual_s))
        try:
            await self._app(scope, body.receive, body.send)
        except Exception:
            if not body.late:
                raise  # otherwise it is the application's error for a client that has disconnected


class _Body:
    """The body of one request and the beginning of its response."""

    def __init__(self, receive: Receive, send: Send, timeout_s: float) -> None:
        self._receive = receive
        self._send = send
        self._timeout_s = timeout_s
        self._ends_at = asyncio.get_running_loop().time() + timeout_s
        self._expected = True
        self._responded = False
        self.late = False

    async def receive(self) -> Message:
        """Return the next message, within the deadline while the body is not complete."""
        if not self._expected:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._ends_at):
                message = await self._receive()
        except TimeoutError:
            self._expected, self.late = False, True
            if not self._responded:
                await self._refuse()
            return {"type": "http.disconnect"}
        self._expected = message["type"] == "http.request" and bool(message.get("more_body"))
        return message

    async def send(self, message: Message) -> None:
        """Pass a message on; after a refusal nothing more is sent."""
        if not self.late or self._responded:
            self._responded = True
            await self._send(message)

    async def _refuse(self) -> None:
        error = {
            "message": f"The body did not arrive within {self._timeout_s:.3g} s.",
            "type": "invalid_request_error",
            "param": None,
            "code": "body_timeout",
        }
        body = json.dumps({"error": error}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        await self._send({"type": "http.response.start", "status": 408, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
