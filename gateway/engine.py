"""The one seam to engines: open a stream, read what has arrived, abort.

aiohttp with one pooled session per process; connections are kept per replica address and TCP_NODELAY is set by
aiohttp on each. Phases have their own time limits: connecting and headers here, first token and silence in
gateway/open_requests.py, which watches all streams with one timer.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

import aiohttp
import msgspec

from core.errors import EngineFailed, InvalidRequest

CONNECT_TIMEOUT_S = 2.0
HEADERS_TIMEOUT_S = 30.0
"""An engine answers a stream's headers before it prefills; a busy tokenizer may take a while."""
KEEP_ALIVE_TIMEOUT_S = 4.0
"""Below the 5 s after which vLLM's server closes idle connections, so that none is reused while it closes."""
MAX_ERROR_BYTES = 64 * 1024
DRAIN_TIMEOUT_S = 1.0
_CLIENT_ERRORS = frozenset({400, 413, 422})


class AiohttpStream:
    """An engine's answer while it arrives."""

    def __init__(self, response: aiohttp.ClientResponse, drains: set[asyncio.Task[None]]) -> None:
        self._response = response
        self._content = response.content
        self._drains = drains

    async def read(self) -> bytes:
        """What has arrived, all of it; empty at the end. Raises EngineFailed when the connection breaks."""
        try:
            return await self._content.readany()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise EngineFailed(f"The engine's connection broke: {error or type(error).__name__}") from error

    def close(self) -> None:
        """Give the connection back. The body's end may still be on its way: wait for it off the request's path."""
        if self._content.at_eof():
            self._response.release()
            return
        task = asyncio.create_task(self._drain())
        self._drains.add(task)
        task.add_done_callback(self._drains.discard)

    async def _drain(self) -> None:
        """Read up to the end for a moment; a connection that does not end is closed instead of reused."""
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                while await self._content.readany():
                    continue
        except (aiohttp.ClientError, OSError, TimeoutError):
            self._response.close()
        else:
            self._response.release()

    def abort(self) -> None:
        """Close the connection now."""
        self._response.close()


class AiohttpEngines:
    """Engines over HTTP; one per process."""

    def __init__(self, engine_key: str) -> None:
        self._authorization = f"Bearer {engine_key}" if engine_key else ""
        self._session: aiohttp.ClientSession | None = None
        self._drains: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Make the session; needs the running loop."""
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
        """Close every connection."""
        for task in list(self._drains):
            task.cancel()
        await asyncio.gather(*self._drains, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def open(
        self, base_url: str, path: str, body: bytes, headers: Iterable[tuple[str, str]]
    ) -> AiohttpStream:
        """POST and wait for the headers.

        Raises EngineFailed when the engine is away, broken or full, and InvalidRequest when it says that the request
        itself is at fault (a prompt longer than the context, an impossible schema).
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
    """The error behind a status other than 200."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            text = await response.content.read(MAX_ERROR_BYTES)
    except (aiohttp.ClientError, OSError, TimeoutError):
        text = b""
    finally:
        response.close()
    message = error_message(text)
    if response.status in _CLIENT_ERRORS:
        too_long = "context length" in message or "maximum model length" in message
        return InvalidRequest(
            message or "The engine refused the request.", code="context_length_exceeded" if too_long else None
        )
    return EngineFailed(f"The engine answered {response.status}: {message}")


def error_message(document: bytes) -> str:
    """The message of an engine's error object, at most 500 characters; empty when it is none."""
    try:
        found: Any = msgspec.json.decode(document)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""
    if isinstance(found, dict) and isinstance(found.get("error"), dict):
        found = found["error"]
    message = found.get("message") if isinstance(found, dict) else None
    return message[:500] if isinstance(message, str) else ""
