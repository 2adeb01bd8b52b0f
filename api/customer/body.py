"""Reading of a request's body."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from api import errors
from core.errors import InvalidRequest
from gateway.parsing.budget import INLINE_BYTES
from gateway.ports import ClientDisconnected

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

BODY_TIMEOUT_S = 30.0
"""Seconds for a body to arrive."""


async def read_body(receive: Receive, limit: int, reserve: Callable[[], None]) -> bytes:
    """Return the whole body. `reserve` is called once when the body exceeds INLINE_BYTES, before it is read further.

    Raises what `reserve` raises, RequestTooLarge as soon as the body exceeds `limit` bytes, InvalidRequest after
    BODY_TIMEOUT_S, and ClientDisconnected when the client closes the connection.
    """
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnected
                chunk: bytes = message.get("body", b"")
                size += len(chunk)
                if size > limit:
                    raise errors.body_too_large(limit)
                if size > INLINE_BYTES >= size - len(chunk):
                    reserve()
                chunks.append(chunk)
                if not message.get("more_body", False):
                    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
    except TimeoutError:
        raise InvalidRequest(
            f"The body did not arrive within {BODY_TIMEOUT_S:.0f} s.", code="body_timeout"
        ) from None
