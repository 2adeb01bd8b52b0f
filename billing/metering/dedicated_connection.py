"""A dedicated PostgreSQL connection of the hot path: one task uses it, and its commands are never cancelled.

A cancelled asyncpg command leaves its connection in an unknown state, so every command runs to its end. A command that
takes longer than `command_timeout_s` (frozen server, lost packets) terminates the connection instead.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import asyncpg

from core.db import connect_system

CONNECTION_ERRORS = (
    OSError,
    RuntimeError,  # raised by uvloop for a transport that has just closed (sqlalchemy #8871)
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the server died between two commands, and the connection is of no more use
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)
"""Errors of the connection or the server, as opposed to a command that PostgreSQL refused."""

RETRYABLE_ERRORS = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.LockNotAvailableError)
"""Errors after which the same command may succeed when sent again."""


class ConnectionUnavailable(Exception):
    """There is no connection, or it broke before the answer: whether the command took effect is not known."""


class DedicatedConnection:
    """One connection that reconnects by itself; calls must not overlap.

    With `durable=False` a commit does not wait for the disk (synchronous_commit = off), and a crash of the server may
    lose the last half second of commits. Holds accept this, because they are reservations and not bookings. A command
    that waits for a lock longer than `lock_timeout_ms` milliseconds fails with LockNotAvailableError; 0 = it waits on.
    """

    def __init__(
        self,
        database_url: str,
        *,
        durable: bool = True,
        command_timeout_s: float = 15.0,
        connect_timeout_s: float = 5.0,
        lock_timeout_ms: int = 0,
    ) -> None:
        self._database_url = database_url
        self._durable = durable
        self._command_timeout_s = command_timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._lock_timeout_ms = lock_timeout_ms
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self.on_lost: Callable[[], None] = _nothing
        """Called when the connection has ended, also while no command runs."""

    @property
    def connected(self) -> bool:
        """Whether the connection was open when last used."""
        return self._connection is not None and not self._connection.is_closed()

    async def connect(self) -> None:
        """Connect unless connected. Raises ConnectionUnavailable."""
        if self.connected:
            return
        await self.close()
        try:
            connection = await connect_system(self._database_url, timeout=self._connect_timeout_s)
            if not self._durable:
                await connection.execute("SET synchronous_commit = off")
            if self._lock_timeout_ms:
                await connection.execute(f"SET lock_timeout = {self._lock_timeout_ms:d}")
            connection.add_termination_listener(self._tell)
            self._connection = connection
        except (*CONNECTION_ERRORS, asyncpg.PostgresError) as error:
            raise ConnectionUnavailable(str(error)) from error

    async def fetch(self, query: str, *args: Any) -> "list[asyncpg.Record]":
        """Run one command to its end and return its rows.

        Raises ConnectionUnavailable when it is not known whether the command took effect, and asyncpg's errors when
        PostgreSQL refused it.
        """
        await self.connect()
        connection = self._connection
        assert connection is not None  # noqa: S101 - connect() raises otherwise
        # Terminating the connection ends the command with an error.
        watchdog = asyncio.get_running_loop().call_later(self._command_timeout_s, connection.terminate)
        try:
            return await connection.fetch(query, *args)
        except asyncio.CancelledError:
            connection.terminate()
            raise
        except CONNECTION_ERRORS as error:
            if isinstance(error, ValueError):
                raise  # an argument that cannot be sent; the connection is fine
            connection.terminate()
            raise ConnectionUnavailable(str(error)) from error
        finally:
            watchdog.cancel()

    def _tell(self, _: object) -> None:
        self.on_lost()

    async def close(self) -> None:
        """Close the connection; a later `fetch` connects again."""
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            try:
                await connection.close(timeout=1.0)
            except CONNECTION_ERRORS:
                connection.terminate()


def _nothing() -> None:
    """Do nothing: the default, for an owner that needs no notice of a lost connection."""


class Backoff:
    """Exponential backoff with jitter: waits double from `initial_s` to `max_s` until `reset`."""

    def __init__(self, initial_s: float = 0.05, max_s: float = 2.0) -> None:
        self._initial_s = initial_s
        self._max_s = max_s
        self._next_s = initial_s

    def reset(self) -> None:
        """Start again at `initial_s`, after a success."""
        self._next_s = self._initial_s

    async def wait(self) -> None:
        """Sleep for the present wait, times 0.5 to 1, and double it."""
        await asyncio.sleep(self._next_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret
        self._next_s = min(self._next_s * 2, self._max_s)
