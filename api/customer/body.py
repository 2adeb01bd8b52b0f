"""Reading of a request's body, which may be compressed with gzip."""

import asyncio
import zlib
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


def is_compressed(encoding: bytes) -> bool:
    """Whether a body with this Content-Encoding is to be inflated. Raises InvalidRequest for others than gzip."""
    if encoding in (b"", b"identity"):
        return False
    if encoding in (b"gzip", b"x-gzip"):
        return True
    raise errors.unsupported_encoding(encoding, gzip=True)


async def inflate(data: bytes, limit: int, reserve: Callable[[], None]) -> bytes:
    """Return a gzip body's content, of at most `limit` bytes; no more than that is ever inflated.

    Above INLINE_BYTES it goes on in a thread, after `reserve` if the body itself was smaller. Raises what `reserve`
    raises, RequestTooLarge above `limit`, and InvalidRequest for what is not one whole gzip member.
    """
    inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        content = inflater.decompress(data, min(INLINE_BYTES, limit + 1))
        if len(content) <= limit and inflater.unconsumed_tail:
            if len(data) <= INLINE_BYTES:
                reserve()
            rest = limit + 1 - len(content)
            content += await asyncio.to_thread(inflater.decompress, inflater.unconsumed_tail, rest)
    except zlib.error:
        raise _not_gzip() from None
    if len(content) > limit:
        raise errors.body_too_large(limit)
    if not inflater.eof or inflater.unused_data:
        raise _not_gzip()
    return content


def _not_gzip() -> InvalidRequest:
    return InvalidRequest(
        "The body is not one whole gzip stream, as its Content-Encoding says.", code="invalid_gzip"
    )
