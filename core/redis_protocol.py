"""One connection to Redis as an asyncio protocol: commands are written as bytes, replies arrive in their order.

For callers that send many small commands per tick of the event loop. redis-py checks a connection out of a pool and
resumes a coroutine for every reply, which costs more than Redis itself.
"""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import hiredis
from redis.asyncio import Redis, SSLConnection

CONNECT_TIMEOUT_S = 2.0
"""Seconds to connect and to log in."""
_INCOMPLETE = object()
"""What hiredis returns when the rest of a reply has not arrived."""


class ReplyError(Exception):
    """An error that Redis replied to one command."""


class ConnectionClosed(Exception):
    """The connection to Redis was closed."""


def bulk(*parts: str | int | bytes) -> bytes:
    """`parts` as bulk strings of Redis's protocol (RESP)."""
    encoded = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in encoded])


def pack(*parts: str | int | bytes) -> bytes:
    """A whole command."""
    return b"*%d\r\n%b" % (len(parts), bulk(*parts))


class RedisProtocol(asyncio.Protocol):
    """Parses replies and passes each on, an error as ReplyError.

    `on_lost` is called once, with the reason, when the connection has ended for any reason but `close`.
    """

    def __init__(self, on_reply: Callable[[Any], None], on_lost: Callable[[Exception], None]) -> None:
        self._on_reply = on_reply
        self._on_lost = on_lost
        self._reader = hiredis.Reader(replyError=ReplyError, notEnoughData=_INCOMPLETE)
        self._transport: asyncio.WriteTransport | None = None
        self._error: Exception | None = None
        self._closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        """Pass on the replies that are complete."""
        reader, on_reply = self._reader, self._on_reply
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not _INCOMPLETE:
                on_reply(reply)
        except hiredis.ProtocolError as error:
            self.abort(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end."""
        self._transport = None
        if not self._closed:
            self._closed = True
            self._on_lost(self._error or exc or ConnectionClosed("Redis closed the connection"))

    def write(self, data: bytes) -> None:
        """Send packed commands; does nothing after the end."""
        if self._transport is not None:
            self._transport.write(data)

    def abort(self, error: Exception) -> None:
        """End the connection because of `error`, without sending what is buffered."""
        self._error = self._error or error
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """End the connection without a report."""
        self._closed = True
        if self._transport is not None:
            self._transport.close()

    def attach(self, on_reply: Callable[[Any], None], on_lost: Callable[[Exception], None]) -> None:
        """Pass replies and the end to others from now on."""
        self._on_reply, self._on_lost = on_reply, on_lost


async def open_connection(
    redis: Redis, on_reply: Callable[[Any], None], on_lost: Callable[[Exception], None]
) -> RedisProtocol:
    """Connect to the server of `redis` over TCP, TLS or a Unix socket, log in, and select its database.

    Raises OSError, TimeoutError, ReplyError (wrong password) or ConnectionClosed.
    """
    options = redis.connection_pool.connection_kwargs
    protocol: RedisProtocol | None = None
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            protocol, replies = await _connect(redis)
            commands = _log_in(options)
            protocol.write(b"".join(commands))
            for _ in commands:
                reply = await replies.get()
                if isinstance(reply, Exception):
                    raise reply
    except BaseException:
        if protocol is not None:
            protocol.close()
        raise
    protocol.attach(on_reply, on_lost)
    if not replies.empty():  # the connection ended meanwhile
        raise ConnectionClosed("Redis closed the connection")
    return protocol


async def _connect(redis: Redis) -> tuple[RedisProtocol, "asyncio.Queue[Any]"]:
    """The connection, and the queue that its replies and its end are put into."""
    pool = redis.connection_pool
    options = pool.connection_kwargs
    loop = asyncio.get_running_loop()
    replies: asyncio.Queue[Any] = asyncio.Queue()

    def make() -> RedisProtocol:
        return RedisProtocol(replies.put_nowait, replies.put_nowait)

    if "path" in options:
        _, protocol = await loop.create_unix_connection(make, options["path"])
        return protocol, replies
    context = None
    if issubclass(pool.connection_class, SSLConnection):
        context = pool.connection_class(**options).ssl_context.get()
    host, port = options.get("host", "localhost"), int(options.get("port", 6379))
    _, protocol = await loop.create_connection(make, host, port, ssl=context)
    return protocol, replies


def _log_in(options: dict[str, Any]) -> list[bytes]:
    """AUTH and SELECT as far as the URL asks for them."""
    commands = []
    username, password = options.get("username"), options.get("password")
    if username or password:
        commands.append(pack("AUTH", *([username] if username else []), password or ""))
    if options.get("db"):
        commands.append(pack("SELECT", options["db"]))
    return commands
