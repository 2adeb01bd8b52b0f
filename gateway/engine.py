"""The HTTP client of engines: open a stream, read, abort.

One aiohttp session per process keeps connections per replica address and sets TCP_NODELAY on each. This module limits
the time to connect and to receive headers; gateway/open_requests.py limits the time to the first event and between
events, with one timer for all streams.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

import aiohttp
import msgspec

from core.errors import EngineFailed, InvalidRequest

CONNECT_TIMEOUT_S = 2.0
"""Seconds to connect to an engine, and to read the body of an error."""
HEADERS_TIMEOUT_S = 30.0
"""Seconds to a stream's headers, which engines send before they prefill but after they tokenize."""
KEEP_ALIVE_TIMEOUT_S = 4.0
"""Seconds that an idle connection is kept: below vLLM's 5 s, so that no connection is reused while vLLM closes it."""
MAX_ERROR_BYTES = 64 * 1024
"""Bytes read of the body of an engine's error."""
DRAIN_TIMEOUT_S = 1.0
"""Seconds to read the end of a body so that its connection can be reused."""
_CLIENT_ERRORS = frozenset({400, 413, 422})
"""Statuses by which an engine says that the request itself is wrong."""
_TOO_LONG = ("context length", "maximum model length", "context size", "`inputs` tokens")
"""Words by which vLLM, SGLang, llama.cpp and TGI say that a prompt does not fit."""


class AiohttpStream:
    """An engine's answer while it arrives (gateway.ports.EngineStream)."""

    def __init__(self, response: aiohttp.ClientResponse, drains: set[asyncio.Task[None]]) -> None:
        self._response = response
        self._content = response.content
        self._drains = drains

    async def read(self) -> bytes:
        """Return all bytes that have arrived, or b"" at the end. Raises EngineFailed when the connection breaks."""
        try:
            return await self._content.readany()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise EngineFailed(f"The engine's connection broke: {error or type(error).__name__}") from error

    def close(self) -> None:
        """Return the connection to the pool. A body that has not ended yet is read to its end in another task."""
        if self._content.at_eof():
            self._response.release()
            return
        task = asyncio.create_task(self._drain())
        self._drains.add(task)
        task.add_done_callback(self._drains.discard)

    async def _drain(self) -> None:
        """Read to the end of the body; close the connection when the end does not arrive in time."""
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                while await self._content.readany():
                    continue
        except (aiohttp.ClientError, OSError, TimeoutError):
            self._response.close()
        else:
            self._response.release()

    def abort(self) -> None:
        """Close the connection at once."""
        self._response.close()


class AiohttpEngines:
    """Opens streams to engines over HTTP (gateway.ports.Engines). One per process."""

    def __init__(self, engine_key: str) -> None:
        self._authorization = f"Bearer {engine_key}" if engine_key else ""
        self._session: aiohttp.ClientSession | None = None
        self._drains: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Create the session. Must run inside the event loop."""
        connector = aiohttp.TCPConnector(
            limit=0, limit_per_host=0, keepalive_timeout=KEEP_ALIVE_TIMEOUT_S, ttl_dns_cache=30
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            read_bufsize=256 * 1024,
            trust_env=False,
        )

    async def close(self) -> None:
        """Close all connections."""
        for task in list(self._drains):
            task.cancel()
        await asyncio.gather(*self._drains, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def open(
        self, base_url: str, path: str, body: bytes, headers: Iterable[tuple[str, str]]
    ) -> AiohttpStream:
        """POST `body` to `base_url` + `path` and wait for the headers.

        Raises EngineFailed when the engine is unreachable, fails or is full, and InvalidRequest when the engine
        refuses the request itself, such as a prompt longer than its context or an invalid schema.
        """
        if self._session is None:
            raise RuntimeError("AiohttpEngines.start() has not run")
        send = {"Content-Type": "application/json", "Accept-Encoding": "identity", **dict(headers)}
        if self._authorization:
            send["Authorization"] = self._authorization
        try:
            async with asyncio.timeout(HEADERS_TIMEOUT_S):
                response = await self._session.post(
                    base_url + path, data=body, headers=send, allow_redirects=False
                )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise EngineFailed(f"The engine did not answer: {error or type(error).__name__}") from error
        if response.status != 200:
            raise await _error_of(response)
        return AiohttpStream(response, self._drains)


async def _error_of(response: aiohttp.ClientResponse) -> EngineFailed | InvalidRequest:
    """The error for a response whose status is not 200."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            text = await response.content.read(MAX_ERROR_BYTES)
    except (aiohttp.ClientError, OSError, TimeoutError):
        text = b""
    finally:
        response.close()
    message = error_message(text)
    if response.status in _CLIENT_ERRORS:
        too_long = any(words in message for words in _TOO_LONG)
        return InvalidRequest(
            message or "The engine refused the request.", code="context_length_exceeded" if too_long else None
        )
    return EngineFailed(f"The engine answered {response.status}: {message}")


def error_message(document: bytes) -> str:
    """The message of an engine's error object, at most 500 characters; empty when `document` is no error object."""
    try:
        found: Any = msgspec.json.decode(document)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""
    if not isinstance(found, dict):
        return ""
    error = found.get("error", found)  # TGI and Ollama: {"error": text}; FastAPI: {"detail": text}
    message = error.get("message", error.get("detail")) if isinstance(error, dict) else error
    return message[:500] if isinstance(message, str) else ""
