"""Connections to engines that are kept for further requests."""

import asyncio
import ssl
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from core.private_tls import ENGINE_NAME, client_context
from gateway.engine_connection import EngineConnection

CONNECT_TIMEOUT_S = 2.0
"""Seconds to connect to an engine."""
KEEP_ALIVE_TIMEOUT_S = 4.0
"""Seconds that an idle connection is kept: below vLLM's 5 s, so that no connection is reused while vLLM closes it."""
TLS_KEEP_ALIVE_TIMEOUT_S = 60.0
"""The same for engines of hosts that have joined, which their agents start with 75 s (workers/engine_tls.py): a
handshake costs a round trip and a millisecond of processor time on each side."""
_SWEEP_S = 1.0
"""Seconds between two searches for connections that have been idle for too long."""


class Address(NamedTuple):
    """Where an engine listens, and who has signed its certificate."""

    host: str
    port: int
    tls: bool
    authority: bytes = b""
    """Certificate of the authority of the engine's host, in PEM; empty = a public one."""

    @property
    def kept_s(self) -> float:
        """Seconds that an idle connection is kept."""
        return TLS_KEEP_ALIVE_TIMEOUT_S if self.authority else KEEP_ALIVE_TIMEOUT_S


class Origin(msgspec.Struct, frozen=True):
    """The parts of an engine's base URL."""

    address: Address
    authority: bytes
    """The value of the header Host."""
    prefix: bytes
    """The path of the base URL, without a slash at its end."""


@lru_cache(maxsize=1024)
def parse_origin(base_url: str, authority: bytes = b"") -> Origin:
    """Return the origin of an engine's base URL.

    Raises ValueError when it is not an http or https URL, and with `authority` when it is not one for TLS.
    """
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"not an address of an engine: {base_url!r}")
    tls = parts.scheme == "https"
    if authority and not tls:
        raise ValueError(f"an engine of a host with a certificate is not asked without TLS: {base_url!r}")
    named = parts.netloc.rpartition("@")[2]
    return Origin(
        Address(parts.hostname, parts.port or (443 if tls else 80), tls, authority),
        named.encode("ascii"),
        parts.path.rstrip("/").encode("ascii"),
    )


@lru_cache(maxsize=1024)
def _context_of(authority: bytes) -> ssl.SSLContext:
    return client_context(authority)


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
            fresh = asyncio.get_running_loop().time() - connection.idle_since < address.kept_s
            if fresh and connection.usable:
                return connection
            connection.abort("idle")
        return None

    async def connect(self, address: Address) -> EngineConnection:
        """Return a new connection. Raises OSError or TimeoutError when there is none within CONNECT_TIMEOUT_S."""
        loop = asyncio.get_running_loop()
        context = self._tls_context(address.authority) if address.tls else None
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, connection = await loop.create_connection(
                lambda: EngineConnection(loop, self._keep, self._forget),
                address.host,
                address.port,
                ssl=context,
                server_hostname=ENGINE_NAME if address.authority else None,
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
        for address, idle in list(self._idle.items()):
            before = loop.time() - address.kept_s
            for connection in [one for one in idle if one.idle_since <= before]:
                idle.remove(connection)
                connection.abort("idle")
            if not idle:
                del self._idle[address]
        self._sweeper = loop.call_later(_SWEEP_S, self._sweep) if self._idle else None

    def _tls_context(self, authority: bytes) -> ssl.SSLContext:
        if authority:
            return _context_of(authority)
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls
