"""Accepts connections by TLS and without on one port: the first byte tells which, because the peer speaks first."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from core.supervise import supervise
from scheduler import metrics

FIRST_BYTE_S = 5.0
"""Seconds within which a peer must send its first byte."""
HANDSHAKE_S = 5.0
PAUSE_S = 0.5
"""Pause after an error of accepting, such as too many open files."""
BACKLOG = 512
_HANDSHAKE = b"\x16"
"""First byte of TLS. A frame begins with 0: its length is below 16 MiB."""

log = logging.getLogger(__name__)


class Acceptor:
    """Listens, and makes a protocol for each connection."""

    def __init__(
        self, make: Callable[[bool], asyncio.Protocol], context: Callable[[], ssl.SSLContext | None]
    ) -> None:
        """`make` is told whether the connection is by TLS. `context` has the certificate; None = there is none yet."""
        self._make, self._context = make, context
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._opening: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port. Raises OSError when the address is in use or not of this machine."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        self._socket = listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(BACKLOG)
        except OSError:
            listening.close()
            raise
        listening.setblocking(False)
        self._accepting = supervise("scheduler-accept", self._accept)
        return int(listening.getsockname()[1])

    async def close(self) -> None:
        """Stop to listen. Connections that were made go on."""
        tasks = [*self._opening, *filter(None, [self._accepting])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        if self._socket is None:
            raise RuntimeError("start() first")
        while True:
            try:
                connection, _ = await loop.sock_accept(self._socket)
            except OSError as error:
                log.warning("a connection cannot be accepted: %s", error)
                await asyncio.sleep(PAUSE_S)
                continue
            task = asyncio.create_task(self._open(connection))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            connection.setblocking(False)
            async with asyncio.timeout(FIRST_BYTE_S):
                encrypted = await _first_byte(connection) == _HANDSHAKE
            context = self._context() if encrypted else None
            if encrypted and context is None:
                raise OSError("there is no certificate yet")
            await loop.connect_accepted_socket(
                lambda: self._make(encrypted),
                connection,
                ssl=context,
                ssl_handshake_timeout=HANDSHAKE_S if encrypted else None,
            )
        except (OSError, TimeoutError) as error:
            metrics.REJECTED_CONNECTIONS.labels("not opened").inc()
            log.debug("a connection was not opened: %s", error)
            connection.close()
        except asyncio.CancelledError:
            connection.close()
            raise


async def _first_byte(connection: socket.socket) -> bytes:
    """The first byte that a peer has sent, which stays to be read."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return connection.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            readable: asyncio.Future[None] = loop.create_future()
            loop.add_reader(connection, _wake, readable)
            try:
                await readable
            finally:
                loop.remove_reader(connection)


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
