"""The HTTP client of engines: open a stream, read, abort.

Connections are kept per address (gateway/engine_pool.py) and speak HTTP/1.1 through llhttp
(gateway/engine_connection.py). This module limits the time to connect and to receive headers; gateway/open_requests.py
limits the time to the first event and between events, with one timer for all streams.
"""

import asyncio
from collections.abc import Iterable

from core.errors import EngineFailed
from gateway.engine_connection import EngineResponse
from gateway.engine_pool import ConnectionPool, Origin, parse_origin
from gateway.refusals import RefusedByEngine, engine_error

HEADERS_TIMEOUT_S = 30.0
"""Seconds to a stream's headers, which engines send before they prefill but after they tokenize."""
ERROR_TIMEOUT_S = 2.0
"""Seconds to read the body of an error."""
MAX_ERROR_BYTES = 64 * 1024
"""Bytes read of the body of an engine's error."""
RETRY_WITHIN_S = 0.25
"""Seconds from sending a request on a reused connection to its loss, up to which the request is sent again."""
_FIXED = b"Content-Type: application/json\r\nAccept-Encoding: identity\r\n"


class HttpEngines:
    """Opens streams to engines over HTTP (gateway.ports.Engines). One per process."""

    def __init__(self, engine_key: str) -> None:
        """`engine_key` is that of engines on hosts without a key of their own."""
        self._key = engine_key
        self._pool = ConnectionPool()

    async def start(self) -> None:
        """Do nothing: connections are made when they are needed."""

    async def close(self) -> None:
        """Close all connections."""
        self._pool.close()

    async def open(
        self,
        base_url: str,
        path: str,
        body: bytes,
        headers: Iterable[tuple[str, str]],
        *,
        headers_timeout_s: float = HEADERS_TIMEOUT_S,
        key: str = "",
        authority: bytes = b"",
    ) -> EngineResponse:
        """POST `body` to `base_url` + `path` and wait for the headers. `key` is the engine's own key, if it has one.

        `authority` has signed its certificate, in PEM: nothing else is trusted, and nothing is sent without TLS.
        Empty = as the URL says, with a certificate of a public authority.

        Raises EngineFailed when the engine is unreachable, fails or is full, and RefusedByEngine when the engine
        refuses the request itself, such as a prompt longer than its context or an invalid schema.
        """
        try:
            origin = parse_origin(base_url, authority)
            request = self._request(origin, path, body, headers, key or self._key)
            async with asyncio.timeout(headers_timeout_s):
                response = await self._send(origin, request)
        except (OSError, TimeoutError, ValueError) as error:
            raise EngineFailed(f"The engine did not answer: {error or type(error).__name__}") from error
        if response.status != 200:
            raise await _error_of(response)
        return response

    def _request(
        self, origin: Origin, path: str, body: bytes, headers: Iterable[tuple[str, str]], key: str
    ) -> bytes:
        own = b"".join(
            b"%s: %s\r\n" % (name.encode("ascii"), value.encode("ascii")) for name, value in headers
        )
        if key:
            own += b"Authorization: Bearer %s\r\n" % key.encode("latin-1")
        return b"POST %s%s HTTP/1.1\r\nHost: %s\r\n%s%sContent-Length: %d\r\n\r\n%s" % (
            origin.prefix, path.encode("ascii"), origin.authority, _FIXED, own, len(body), body,
        )  # fmt: skip

    async def _send(self, origin: Origin, request: bytes) -> EngineResponse:
        """Send a request and wait for the headers of its response.

        A connection that was kept may be closed by the engine just when it is reused. When it is lost soon after and
        nothing of a response has arrived, the request is sent again, once and on a new connection. Engines abort a
        request whose connection is lost, so the first one cost at most RETRY_WITHIN_S of computing; nothing of it was
        counted, so nothing of it is billed.
        """
        kept = self._pool.reuse(origin.address)
        if kept is not None:
            loop = asyncio.get_running_loop()
            sent_at = loop.time()
            try:
                return await _answered(kept.send(request))
            except EngineFailed:
                if not kept.untouched or loop.time() - sent_at > RETRY_WITHIN_S:
                    raise
        connection = await self._pool.connect(origin.address)
        return await _answered(connection.send(request))


async def _answered(response: EngineResponse) -> EngineResponse:
    """Wait for the headers of a response; when that is given up, its connection is closed."""
    try:
        await response.headers()
    except BaseException:
        response.abort()
        raise
    return response


async def _error_of(response: EngineResponse) -> EngineFailed | RefusedByEngine:
    """The error for a response whose status is not 200."""
    text = bytearray()

    def collect(data: bytes) -> bool:
        text.extend(data)
        return len(text) < MAX_ERROR_BYTES

    try:
        async with asyncio.timeout(ERROR_TIMEOUT_S):
            await response.read_into(collect)
    except (EngineFailed, TimeoutError):
        text.clear()
    finally:
        response.abort()
    error = engine_error(bytes(text[:MAX_ERROR_BYTES]))
    refusal = error.refusal(response.status)
    return refusal or EngineFailed(f"The engine answered {response.status}.")  # its text may quote the prompt
