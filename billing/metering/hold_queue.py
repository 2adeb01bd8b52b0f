"""Hold requests on their way to PostgreSQL: batched by event loop tick, each with a deadline.

A request waits on a future and never on the connection: when it is cancelled or times out, the command runs on, and a
hold that it grants is reported as unclaimed.

One connection at a time takes requests. While its command runs, further requests gather for the next one, so that two
commands do not compete for the lock of one account, and batches grow with the load. When a command takes longer than
PASS_TURN_S, the turn passes to the next connection.

A batch mixes tenants and waits for no account. Requests whose account is locked (`busy`) are sent again on connections
of their own, one tenant at a time, where a command waits for the lock for LOCK_TIMEOUT_MS at most. Tenants whose
account stayed locked for so long take turns on the second of these connections, and do not delay those on the first.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from uuid import UUID

import asyncpg
from prometheus_client import Gauge

from billing.metering.dedicated_connection import Backoff, ConnectionUnavailable, DedicatedConnection
from billing.metering.records import HoldRequest
from billing.metering.refusals import account_locked, billing_overloaded, billing_unavailable
from billing.metering.tenant_queues import TenantQueues
from core.clock import CountedTime
from core.errors import Unavailable
from core.supervise import supervise

log = logging.getLogger(__name__)

MAX_BATCH = 64
"""Requests in one call of a database function."""
MAX_PENDING = 1024
"""Requests of a tenant that may wait to be sent; further ones are refused at once."""
MAX_PENDING_IN_ALL = 16 * MAX_PENDING
"""Requests of all tenants that may wait to be sent."""
PASS_TURN_S = 0.02
"""Seconds after which another connection takes the requests that gather while a command runs."""
LOCK_TIMEOUT_MS = 200
"""Milliseconds that a command on a connection for busy tenants waits for an account's lock (lock_timeout)."""
_HOLD = "SELECT * FROM penstock_hold($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"

WAITING = Gauge("penstock_holds_waiting", "Hold requests that wait to be sent to PostgreSQL.")


class _Waiter:
    """A request that waits for its row of `penstock_hold` since `asked_at`, in counted seconds.

    `locked`: its account was found locked.
    """

    __slots__ = ("asked_at", "future", "locked", "request")

    def __init__(
        self, request: HoldRequest, future: "asyncio.Future[asyncpg.Record]", asked_at: float
    ) -> None:
        self.request = request
        self.future = future
        self.asked_at = asked_at
        self.locked = False

    def fail(self, error: Unavailable) -> None:
        """End the wait with an error, unless it has ended."""
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # the caller may be gone


class _RetryLane:
    """A connection for busy tenants, and the tenants that wait for it."""

    def __init__(self, connection: DedicatedConnection) -> None:
        self.connection = connection
        self.tenants: deque[UUID] = deque()
        self.work = asyncio.Event()

    def add(self, tenant_id: UUID) -> None:
        """Append a tenant."""
        self.tenants.append(tenant_id)
        self.work.set()


class HoldQueue:
    """Calls `penstock_hold` for the requests of one process incarnation, on `connections`.

    `retry_connections` serve busy tenants: the first those that have just been found busy, the last those whose account
    stayed locked. Their lock_timeout must be set.

    A request fails when PostgreSQL has answered no request for `timeout_s` seconds, or when it has waited for
    `longest_wait_s` in all: then PostgreSQL answers, but the commit that keeps the account locked waits for a slow
    disk, or this request's command is stuck. Time in which this process did not run is not counted. `on_granted` is
    called with the id of a granted hold, `on_unclaimed` with the id of a hold that may be granted although its request
    has given up.
    """

    def __init__(
        self,
        connections: Iterable[DedicatedConnection],
        retry_connections: Iterable[DedicatedConnection],
        incarnation: str,
        *,
        timeout_s: float,
        longest_wait_s: float,
        on_granted: Callable[[UUID], None],
        on_unclaimed: Callable[[UUID], None],
    ) -> None:
        self._connections = tuple(connections)
        self._lanes = tuple(_RetryLane(connection) for connection in retry_connections)
        self._incarnation = incarnation
        self._timeout_s = timeout_s
        self._longest_wait_s = longest_wait_s
        self._on_granted = on_granted
        self._on_unclaimed = on_unclaimed
        self._unsent = TenantQueues[_Waiter](lambda waiter: not waiter.future.done())
        self._waiters: deque[_Waiter] = deque()
        """Waiters in the order in which they asked, so that one timer serves them all."""
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._check_every_s = timeout_s / 10
        self._time = CountedTime(2 * self._check_every_s)
        self._answered_at = -timeout_s
        """When PostgreSQL last answered, in counted seconds."""
        self._work = asyncio.Event()
        self._turn = asyncio.Lock()
        self._closing = False

    def start(self) -> "list[asyncio.Task[None]]":
        """One task per connection; a task ends after `stop`, once everything is sent or PostgreSQL is away."""
        WAITING.set_function(lambda: len(self._unsent))
        # A lost connection is made again at once, not with the next request: without one, the process is not ready.
        for connection in self._connections:
            connection.on_lost = self._work.set
        for lane in self._lanes:
            lane.connection.on_lost = lane.work.set
        return [
            *(supervise("holds", partial(self._serve, connection)) for connection in self._connections),
            *(supervise("holds-of-busy-accounts", partial(self._serve_busy, lane)) for lane in self._lanes),
        ]

    def stop(self) -> None:
        """Accept no more requests."""
        self._closing = True
        self._work.set()
        for lane in self._lanes:
            lane.work.set()

    async def close(self) -> None:
        """Disconnect, after the tasks have ended."""
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
        for connection in (*self._connections, *(lane.connection for lane in self._lanes)):
            await connection.close()

    @property
    def connected(self) -> bool:
        """Whether one of the connections was open when last used."""
        return any(connection.connected for connection in self._connections)

    async def ask(self, request: HoldRequest) -> asyncpg.Record:
        """The request's row of `penstock_hold`. Raises Unavailable when there is none in time, or too many wait."""
        if self._closing:
            raise billing_unavailable()
        if len(self._unsent) >= MAX_PENDING_IN_ALL or self._unsent.waiting(request.tenant_id) >= MAX_PENDING:
            raise billing_overloaded()
        loop = asyncio.get_running_loop()
        waiter = _Waiter(request, loop.create_future(), self._time.advance(loop.time()))
        self._unsent.add(request.tenant_id, waiter)
        self._waiters.append(waiter)
        if self._expiry_timer is None:
            self._expiry_timer = loop.call_later(self._check_every_s, self._expire_waiters)
        self._work.set()
        try:
            return await waiter.future
        except asyncio.CancelledError:
            self._abandon(waiter)
            raise

    def _expire_waiters(self) -> None:
        """Fail the waiters whose time is over; `_deliver` reports a hold that one of them is granted later."""
        loop = asyncio.get_running_loop()
        now = self._time.advance(loop.time())
        while self._waiters and (self._waiters[0].future.done() or self._deadline(self._waiters[0]) <= now):
            waiter = self._waiters.popleft()
            answers = now < self._answered_at + self._timeout_s
            waiter.fail(account_locked() if answers and waiter.locked else billing_unavailable())
        if len(self._unsent) >= MAX_PENDING_IN_ALL:
            self._unsent.drop_dead()  # those of a tenant whose turn is far off leave the room to others
        self._expiry_timer = (
            loop.call_later(self._check_every_s, self._expire_waiters) if self._waiters else None
        )

    def _deadline(self, waiter: _Waiter) -> float:
        """When the waiter fails, in counted seconds, if PostgreSQL answers nothing more."""
        return min(
            max(waiter.asked_at, self._answered_at) + self._timeout_s,
            waiter.asked_at + self._longest_wait_s,
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
        while not self._finished:
            try:
                await connection.connect()
            except ConnectionUnavailable:
                if self._closing:
                    return
                await backoff.wait()
                continue
            backoff.reset()
            await self._serve_turn(connection)

    async def _serve_turn(self, connection: DedicatedConnection) -> None:
        """Place batches one after the other, until the connection is lost or a command takes long."""
        await self._turn.acquire()
        passed = False

        def pass_turn() -> None:
            nonlocal passed
            passed = True
            self._turn.release()

        try:
            while connection.connected and not passed and not self._finished:
                await self._work.wait()
                # Yield once, so that all requests of this tick go into one batch.
                await asyncio.sleep(0)
                batch = self._next_batch()
                if batch:
                    timer = asyncio.get_running_loop().call_later(PASS_TURN_S, pass_turn)
                    try:
                        await self._place_batch(connection, batch)
                    finally:
                        timer.cancel()
        finally:
            if not passed:
                self._turn.release()

    @property
    def _finished(self) -> bool:
        return self._closing and not self._unsent.has_free

    def _next_batch(self) -> list[_Waiter]:
        batch = self._unsent.take_free(MAX_BATCH)
        if not self._unsent.has_free and not self._closing:
            self._work.clear()
        return batch

    async def _serve_busy(self, lane: _RetryLane) -> None:
        """Send the requests of one busy tenant after the other.

        The connection is there before the first of them: their time would be over before a busy server made one.
        """
        backoff = Backoff()
        while not (self._closing and not lane.tenants):
            try:
                await lane.connection.connect()
            except ConnectionUnavailable:
                if self._closing:
                    return
                await backoff.wait()
                continue
            backoff.reset()
            if lane.tenants:
                await self._retry(lane, lane.tenants.popleft())
            else:
                lane.work.clear()
                await lane.work.wait()

    async def _retry(self, lane: _RetryLane, tenant_id: UUID) -> None:
        """Send the requests of a busy tenant, and make it free unless its account stays locked."""
        batch = self._unsent.take_busy(tenant_id, MAX_BATCH)
        locked = False
        try:
            if batch:
                await self._place_batch(lane.connection, batch, wait=True)
        except asyncpg.LockNotAvailableError:
            locked = True
            for waiter in batch:
                waiter.locked = True
            self._answered_at = self._time.advance(asyncio.get_running_loop().time())
            self._unsent.put_back(tenant_id, batch)
            self._lanes[-1].add(tenant_id)
        finally:
            if not locked:
                self._unsent.release(tenant_id)
                self._work.set()

    async def _place_batch(
        self, connection: DedicatedConnection, batch: list[_Waiter], *, wait: bool = False
    ) -> None:
        """Send one command and deliver its rows. Raises LockNotAvailableError after a `wait` for a locked account."""
        try:
            rows = await self._call(connection, [waiter.request for waiter in batch], wait)
        except asyncpg.LockNotAvailableError:
            if wait:
                raise
            self._fail(batch)
        except (ConnectionUnavailable, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            if not isinstance(error, ConnectionUnavailable):
                log.warning("holds refused by the database: %s", error)
            self._fail(batch)
        except BaseException:
            self._fail(batch)
            raise
        else:
            self._answered_at = self._time.advance(asyncio.get_running_loop().time())
            self._deliver_all(batch, {row["request_id"]: row for row in rows})

    async def _call(
        self, connection: DedicatedConnection, requests: list[HoldRequest], wait: bool
    ) -> "list[asyncpg.Record]":
        return await connection.fetch(
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
            wait,
            [one.labels for one in requests],
            [one.adapter for one in requests],
        )

    def _fail(self, batch: list[_Waiter]) -> None:
        for waiter in batch:
            # The hold may have been committed although the answer was lost.
            self._on_unclaimed(waiter.request.request_id)
            waiter.fail(billing_unavailable())

    def _deliver_all(self, batch: list[_Waiter], rows: dict[UUID, asyncpg.Record]) -> None:
        busy: dict[UUID, list[_Waiter]] = {}
        for waiter in batch:
            row = rows[waiter.request.request_id]
            if row["verdict"] == "busy":
                waiter.locked = True
                busy.setdefault(waiter.request.tenant_id, []).append(waiter)
            else:
                self._deliver(waiter, row)
        for tenant_id, waiters in busy.items():
            if self._unsent.put_back(tenant_id, waiters):
                self._lanes[0].add(tenant_id)

    def _deliver(self, waiter: _Waiter, row: asyncpg.Record) -> None:
        granted = row["verdict"] == "granted"
        if waiter.future.done():
            if granted:
                self._on_unclaimed(waiter.request.request_id)
            return
        if granted:
            self._on_granted(waiter.request.request_id)
        waiter.future.set_result(row)
