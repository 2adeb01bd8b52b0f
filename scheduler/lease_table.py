"""The lease in PostgreSQL: read, taken, renewed and released, on a connection of its own."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import asyncpg

from core.addresses import Address
from core.db import connect_system
from scheduler.lease import LEASE_S, LeaseRow

ANSWER_S = 1.0
"""Seconds within which PostgreSQL must answer a statement; then the connection is made again."""

ResultT = TypeVar("ResultT")
_Connection = asyncpg.Connection

_READ = """
    SELECT term, owner, renewed_at, renewed_at + $1::interval < clock_timestamp() AS expired FROM scheduler_lease
"""
_TAKE = """
    UPDATE scheduler_lease SET owner = $1, term = greatest(term, $2::bigint) + 1, renewed_at = clock_timestamp(),
        serving_since = clock_timestamp()
    WHERE term = $3 AND renewed_at = $4
        AND (owner IN ('', $1) OR renewed_at + $5::interval < clock_timestamp())
    RETURNING term
"""
_RENEW = """
    UPDATE scheduler_lease SET renewed_at = clock_timestamp(), serving_since = CASE
        WHEN renewed_at < clock_timestamp() - interval '10 seconds' THEN clock_timestamp() ELSE serving_since END
    WHERE term = $1 AND owner = $2 RETURNING term
"""
_RELEASE = "UPDATE scheduler_lease SET owner = '' WHERE term = $1 AND owner = $2"


_ERRORS = (
    OSError,
    RuntimeError,  # raised by uvloop for a transport that has just closed (sqlalchemy #8871)
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)


class LeaseUnavailable(Exception):
    """PostgreSQL has not answered, or not as it should."""


def owner_at(address: Address) -> str:
    """The name of the scheduler that listens on `address` here, as the lease records it.

    It contains this boot of the kernel and the network namespace. In one namespace only one process listens on an
    address, so whoever listens there knows that an earlier owner of this name has ended.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = os.stat("/proc/self/ns/net").st_ino
    return f"{socket.gethostname()} {address} {namespace} {boot}"


class LeaseTable:
    """The row as the scheduler `owner` sees it. Every method raises LeaseUnavailable."""

    def __init__(self, database_url: str, owner: str) -> None:
        self.owner = owner
        self._url = database_url
        self._connection: _Connection | None = None

    async def read(self) -> LeaseRow:
        """The lease now."""
        record = await self._ask(lambda connection: connection.fetchrow(_READ, timedelta(seconds=LEASE_S)))
        if record is None:
            raise LeaseUnavailable("the table scheduler_lease is empty; `penstock migrate` fills it")
        return LeaseRow(record["term"], record["owner"], record["renewed_at"], record["expired"])

    async def take(self, row: LeaseRow, heard: int) -> int | None:
        """Take the lease if it still is as in `row`, and either free, this owner's or expired by PostgreSQL's clock.

        Returns the new term, which is above `row.term` and above `heard`; None when another scheduler was faster.
        """
        lease = timedelta(seconds=LEASE_S)
        return await self._ask(
            lambda connection: connection.fetchval(_TAKE, self.owner, heard, row.term, row.renewed_at, lease)
        )

    async def renew(self, term: int) -> bool:
        """Renew the lease of `term`. False when another scheduler has it."""
        return await self._ask(lambda connection: connection.fetchval(_RENEW, term, self.owner)) is not None

    async def release(self, term: int) -> None:
        """Let another scheduler take the lease at once."""
        await self._ask(lambda connection: connection.execute(_RELEASE, term, self.owner))

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def _ask(self, statement: Callable[[_Connection], Awaitable[ResultT]]) -> ResultT:
        """The result of a statement. One that takes too long is not cancelled: its connection is closed."""
        asking = asyncio.create_task(self._answer(statement))
        try:
            await asyncio.wait({asking}, timeout=ANSWER_S)
            if not asking.done():
                raise LeaseUnavailable(f"PostgreSQL has not answered for {ANSWER_S:.0f} s")
            return asking.result()
        except _ERRORS as error:
            self.close()
            raise LeaseUnavailable(str(error) or type(error).__name__) from error
        finally:
            if not asking.done():
                self.close()
                asking.cancel()
                asking.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _answer(self, statement: Callable[[_Connection], Awaitable[ResultT]]) -> ResultT:
        if self._connection is None or self._connection.is_closed():
            self._connection = await connect_system(self._url)
        return await statement(self._connection)
