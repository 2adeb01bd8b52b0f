"""Hold requests on their way to PostgreSQL: batched by event loop tick, each with a deadline.

A request waits on a future and never on the connection: when it is cancelled or times out, the command runs on, and a
hold that it grants is reported as unclaimed.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from uuid import UUID

import asyncpg

from billing.metering.dedicated_connection import Backoff, ConnectionUnavailable, DedicatedConnection
from billing.metering.records import HoldRequest
from billing.metering.refusals import billing_unavailable

log = logging.getLogger(__name__)

MAX_BATCH = 64
"""Requests in one call of a database function."""
MAX_PENDING = 4096
"""Requests that may wait to be sent; further ones are refused at once."""

_HOLD = "SELECT * FROM penstock_hold($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"


class _Waiter:
    """A request that waits for its row of `penstock_hold` until `deadline`, in the event loop's time."""

    __slots__ = ("deadline", "future", "request")

    def __init__(
        self, request: HoldRequest, future: "asyncio.Future[asyncpg.Record]", deadline: float
    ) -> None:
        self.request = request
        self.future = future
        self.deadline = deadline


class HoldQueue:
    """Calls `penstock_hold` for the requests of one process incarnation, on `connections`.

    Each wait for an answer is bounded by `timeout_s`. `on_granted` is called with the id of a granted hold,
    `on_unclaimed` with the id of a hold that may be granted although its request has given up.
    """

    def __init__(
        self,
        connections: Iterable[DedicatedConnection],
        incarnation: str,
        *,
        timeout_s: float,
        on_granted: Callable[[UUID], None],
        on_unclaimed: Callable[[UUID], None],
    ) -> None:
        self._connections = tuple(connections)
        self._incarnation = incarnation
        self._timeout_s = timeout_s
        self._on_granted = on_granted
        self._on_unclaimed = on_unclaimed
        self._unsent: deque[_Waiter] = deque()
        self._waiters: deque[_Waiter] = deque()
        """Waiters of the last `timeout_s`, the oldest first, so that one timer serves them all."""
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._work = asyncio.Event()
        self._closing = False

    def start(self) -> "list[asyncio.Task[None]]":
        """One task per connection; a task ends after `stop`, once everything is sent or PostgreSQL is away."""
        return [asyncio.create_task(self._serve(connection)) for connection in self._connections]

    def stop(self) -> None:
        """Accept no more requests."""
        self._closing = True
        self._work.set()

    async def close(self) -> None:
        """Disconnect, after the tasks have ended."""
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
        for connection in self._connections:
            await connection.close()

    @property
    def connected(self) -> bool:
        """Whether one of the connections was open when last used."""
        return any(connection.connected for connection in self._connections)

    async def ask(self, request: HoldRequest) -> asyncpg.Record:
        """The request's row of `penstock_hold`. Raises Unavailable when there is none within `timeout_s`."""
        if len(self._unsent) >= MAX_PENDING or self._closing:
            raise billing_unavailable()
        loop = asyncio.get_running_loop()
        waiter = _Waiter(request, loop.create_future(), loop.time() + self._timeout_s)
        self._unsent.append(waiter)
        self._waiters.append(waiter)
        if self._expiry_timer is None:
            self._expiry_timer = loop.call_at(waiter.deadline, self._expire_waiters)
        self._work.set()
        try:
            return await waiter.future
        except asyncio.CancelledError:
            self._abandon(waiter)
            raise

    def _expire_waiters(self) -> None:
        """Fail the waiters whose deadline has passed; `_deliver` reports a hold that one of them is granted later."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._waiters and (self._waiters[0].future.done() or self._waiters[0].deadline <= now):
            waiter = self._waiters.popleft()
            if not waiter.future.done():
                waiter.future.set_exception(billing_unavailable())
        self._expiry_timer = (
            loop.call_at(self._waiters[0].deadline, self._expire_waiters) if self._waiters else None
        )

    def _abandon(self, waiter: _Waiter) -> None:
        """Report the hold of a cancelled waiter, now if it is granted already, else in `_deliver`."""
        future = waiter.future
        if not future.done():
            future.cancel()
        elif (
            not future.cancelled() and future.exception() is None and future.result()["verdict"] == "granted"
        ):
            self._on_unclaimed(waiter.request.request_id)

    async def _serve(self, connection: DedicatedConnection) -> None:
        backoff = Backoff()
        while not (self._closing and not self._unsent):
            try:
                await connection.connect()
            except ConnectionUnavailable:
                if self._closing:
                    return
                await backoff.wait()
                continue
            backoff.reset()
            await self._work.wait()
            # Yield once, so that all requests of this tick go into one batch.
            await asyncio.sleep(0)
            batch = self._next_batch()
            if batch:
                await self._place_batch(connection, batch)

    def _next_batch(self) -> list[_Waiter]:
        batch: list[_Waiter] = []
        while self._unsent and len(batch) < MAX_BATCH:
            waiter = self._unsent.popleft()
            if not waiter.future.done():
                batch.append(waiter)
        if not self._unsent and not self._closing:
            self._work.clear()
        return batch

    async def _place_batch(self, connection: DedicatedConnection, batch: list[_Waiter]) -> None:
        requests = [waiter.request for waiter in batch]
        try:
            rows = await connection.fetch(
                _HOLD,
                self._incarnation,
                [one.request_id for one in requests],
                [one.tenant_id for one in requests],
                [one.project_id for one in requests],
                [one.key_id for one in requests],
                [one.model for one in requests],
                [one.tier for one in requests],
                [one.max_input_tokens for one in requests],
                [one.max_output_tokens for one in requests],
                [one.default_output_tokens for one in requests],
                [one.whole for one in requests],
            )
        except (ConnectionUnavailable, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            if not isinstance(error, ConnectionUnavailable):
                log.warning("holds refused by the database: %s", error)
            for waiter in batch:
                # The hold may have been committed although the answer was lost.
                self._on_unclaimed(waiter.request.request_id)
                if not waiter.future.done():
                    waiter.future.set_exception(billing_unavailable())
                    waiter.future.exception()
            return
        verdicts = {row["request_id"]: row for row in rows}
        for waiter in batch:
            self._deliver(waiter, verdicts[waiter.request.request_id])

    def _deliver(self, waiter: _Waiter, row: asyncpg.Record) -> None:
        granted = row["verdict"] == "granted"
        if waiter.future.done():
            if granted:
                self._on_unclaimed(waiter.request.request_id)
            return
        if granted:
            self._on_granted(waiter.request.request_id)
        waiter.future.set_result(row)
