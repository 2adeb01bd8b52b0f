"""A lane: one dedicated PostgreSQL connection of the hot path, used by one task, whose commands are never cancelled.

A cancelled asyncpg command leaves the connection in an unknown state, so a lane waits for every command to end. One
that takes longer than `stall_s` (the server froze, the network swallows packets) costs the connection: it is torn
down, not cancelled, and never used again.
"""

import asyncio
import random
from typing import Any

import asyncpg

from core.db import connect_system

CONNECTION_ERRORS = (
    OSError,
    RuntimeError,  # uvloop's word for a transport that has just closed (sqlalchemy #8871)
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)
"""PostgreSQL is away, not: PostgreSQL refused what it was asked."""

RETRYABLE_ERRORS = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.LockNotAvailableError)
"""The same command may succeed when it is sent again."""


class LaneDown(Exception):
    """The command's fate is unknown, or there is no connection: PostgreSQL is away."""


class Lane:
    """One connection with reconnection; calls must not overlap.

    Without `durable` a commit does not wait for the disk: a crash of the PostgreSQL server may undo the last half
    second of it. Holds are placed so, since they are reservations and no bookings.
    """

    def __init__(
        self,
        database_url: str,
        *,
        durable: bool = True,
        stall_s: float = 15.0,
        connect_timeout_s: float = 5.0,
    ) -> None:
        self._database_url = database_url
        self._durable = durable
        self._stall_s = stall_s
        self._connect_timeout_s = connect_timeout_s
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None

    @property
    def connected(self) -> bool:
        """Whether the last we know is a living connection."""
        return self._connection is not None and not self._connection.is_closed()

    async def connect(self) -> None:
        """Connect unless connected. Raises LaneDown."""
        if self.connected:
            return
        await self.close()
        try:
            connection = await connect_system(self._database_url, timeout=self._connect_timeout_s)
            if not self._durable:
                await connection.execute("SET synchronous_commit = off")
            self._connection = connection
        except (*CONNECTION_ERRORS, asyncpg.PostgresError) as error:
            raise LaneDown(str(error)) from error

    async def fetch(self, query: str, *args: Any) -> "list[asyncpg.Record]":
        """Run one command to its end. Raises LaneDown when its fate is unknown, asyncpg errors when it was refused."""
        await self.connect()
        connection = self._connection
        assert connection is not None  # noqa: S101 - connect() raises otherwise
        command = asyncio.ensure_future(connection.fetch(query, *args))
        try:
            done, _ = await asyncio.wait({command}, timeout=self._stall_s)
        except asyncio.CancelledError:
            connection.terminate()
            command.add_done_callback(_swallow)
            raise
        if not done:
            connection.terminate()
            command.add_done_callback(_swallow)
            raise LaneDown(f"no answer within {self._stall_s} s")
        try:
            return command.result()
        except CONNECTION_ERRORS as error:
            if isinstance(error, ValueError):
                raise  # an argument that cannot be sent; the connection is fine
            connection.terminate()
            raise LaneDown(str(error)) from error

    async def close(self) -> None:
        """Drop the connection."""
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            try:
                await connection.close(timeout=1.0)
            except CONNECTION_ERRORS:
                connection.terminate()


class Backoff:
    """Waits that grow from `first_s` to `most_s`, with jitter, and start anew after a success."""

    def __init__(self, first_s: float = 0.05, most_s: float = 2.0) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._next_s = first_s

    def reset(self) -> None:
        """The thing worked."""
        self._next_s = self._first_s

    async def wait(self) -> None:
        """Sleep for the next step."""
        await asyncio.sleep(self._next_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret
        self._next_s = min(self._next_s * 2, self._most_s)


def _swallow(command: "asyncio.Future[Any]") -> None:
    """Look at the result of an abandoned command, so that nobody warns about it."""
    if not command.cancelled():
        command.exception()
