"""Connections to engines that are kept for further requests."""

import asyncio
import ssl
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from gateway.engine_connection import EngineConnection

CONNECT_TIMEOUT_S = 2.0
"""Seconds to connect to an engine."""
KEEP_ALIVE_TIMEOUT_S = 4.0
"""Seconds that an idle connection is kept: below vLLM's 5 s, so that no connection is reused while vLLM closes it."""
_SWEEP_S = 1.0
"""Seconds between two searches for connections that have been idle for too long."""


class Address(NamedTuple):
    """Where an engine listens."""

    host: str
    port: int
    tls: bool


class Origin(msgspec.Struct, frozen=True):
    """The parts of an engine's base URL."""

    address: Address
    authority: bytes
    """The value of the header Host."""
    prefix: bytes
    """The path of the base URL, without a slash at its end."""


@lru_cache(maxsize=1024)
def parse_origin(base_url: str) -> Origin:
    """Return the origin of an engine's base URL. Raises ValueError when it is not an http or https URL."""
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"not an address of an engine: {base_url!r}")
    tls = parts.scheme == "https"
    authority = parts.netloc.rpartition("@")[2]
    return Origin(
        Address(parts.hostname, parts.port or (443 if tls else 80), tls),
        authority.encode("ascii"),
        parts.path.rstrip("/").encode("ascii"),
    )


class ConnectionPool:
    """Idle connections by address; the one that was used last is used first. One per process."""

    def __init__(self) -> None:
        self._idle: dict[Address, list[EngineConnection]] = {}
        self._open: dict[EngineConnection, Address] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._tls: ssl.SSLContext | None = None

    def reuse(self, address: Address) -> EngineConnection | None:
        """Return an idle connection, or None."""
        idle = self._idle.get(address)
        while idle:
            connection = idle.pop()
            fresh = asyncio.get_running_loop().time() - connection.idle_since < KEEP_ALIVE_TIMEOUT_S
            if fresh and connection.usable:
                return connection
            connection.abort("idle")
        return None

    async def connect(self, address: Address) -> EngineConnection:
        """Return a new connection. Raises OSError or TimeoutError when there is none within CONNECT_TIMEOUT_S."""
        loop = asyncio.get_running_loop()
        context = self._tls_context() if address.tls else None
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, connection = await loop.create_connection(
                lambda: EngineConnection(loop, self._keep, self._forget),
                address.host,
                address.port,
                ssl=context,
            )
        if not connection.usable:
            raise ConnectionResetError("the engine closed the connection at once")
        self._open[connection] = address
        return connection

    def close(self) -> None:
        """Close all connections."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._idle.clear()
        for connection in list(self._open):
            connection.abort("the gateway stops")

    def _keep(self, connection: EngineConnection) -> None:
        """Keep a connection whose response has ended."""
        address = self._open.get(connection)
        if address is None:
            return
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.setdefault(address, []).append(connection)
        if self._sweeper is None:
            self._sweeper = loop.call_later(_SWEEP_S, self._sweep)

    def _forget(self, connection: EngineConnection) -> None:
        """Remove a closed connection."""
        address = self._open.pop(connection, None)
        idle = self._idle.get(address) if address is not None else None
        if idle and connection in idle:
            idle.remove(connection)

    def _sweep(self) -> None:
        """Close connections that have been idle for too long; run again while any are left."""
        loop = asyncio.get_running_loop()
        before = loop.time() - KEEP_ALIVE_TIMEOUT_S
        for address, idle in list(self._idle.items()):
            for connection in [one for one in idle if one.idle_since <= before]:
                idle.remove(connection)
                connection.abort("idle")
            if not idle:
                del self._idle[address]
        self._sweeper = loop.call_later(_SWEEP_S, self._sweep) if self._idle else None

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls
