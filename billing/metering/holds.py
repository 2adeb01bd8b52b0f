"""Holds of one API process: money reserved before a request runs, and released when it does not run (DESIGN §4, §5).

Requests of one event loop tick share one call of a PostgreSQL function. Each waits on a future and never on the
connection: when a request is cancelled or times out, the command runs on, and a hold that it grants is voided. A hold
that is not renewed expires (billing/metering/reaper.py), so a fault in this process cannot reserve money for ever.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Iterable
from uuid import UUID

import asyncpg
import msgspec

from billing.metering.dedicated_connection import (
    RETRYABLE_ERRORS,
    Backoff,
    ConnectionUnavailable,
    DedicatedConnection,
)
from billing.metering.records import HoldGranted, HoldRequest, PriceVersion
from billing.metering.refusals import billing_unavailable, hold_refusal
from billing.metering.unpriced import UnpricedCounts
from core.clock import Clock
from core.errors import PenstockError

log = logging.getLogger(__name__)

MAX_BATCH = 64
"""Requests in one call of the database function."""
MAX_PENDING = 4096
"""Requests that may wait to be sent; further ones are refused at once."""
WAIT_FOR_HOLDS_S = 2.0
"""How long a request is retried when only other open holds cause its refusal (DESIGN §5)."""
_RETRY_EVERY_S = 0.1

_HOLD = "SELECT * FROM penstock_hold($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"


class _Waiter:
    """A request that waits for its row of `penstock_hold` until `deadline`, in the event loop's time."""

    __slots__ = ("deadline", "future", "request")

    def __init__(
        self, request: HoldRequest, future: "asyncio.Future[asyncpg.Record]", deadline: float
    ) -> None:
        self.request = request
        self.future = future
        self.deadline = deadline


class _PendingExtension(msgspec.Struct):
    """A request that waits for `tokens` more output tokens."""

    request_id: UUID
    tokens: int
    future: "asyncio.Future[bool]"


class HoldManager:
    """Places, extends, renews and voids the holds of one process incarnation.

    `ttl_s` must equal the reaper's; holds are renewed every third of it. `timeout_s` bounds the wait for one answer of
    PostgreSQL. `connections` serve `place`; one more serves everything else. `top_up_url` goes into refusals.
    """

    def __init__(
        self,
        database_url: str,
        incarnation: str,
        *,
        ttl_s: float,
        clock: Clock,
        timeout_s: float = 0.5,
        connections: int = 2,
        top_up_url: str = "",
    ) -> None:
        self._incarnation = incarnation
        self._ttl_s = ttl_s
        self._clock = clock
        self._timeout_s = timeout_s
        self._top_up_url = top_up_url
        self._hold_connections = [
            DedicatedConnection(database_url, durable=False) for _ in range(connections)
        ]
        self._control_connection = DedicatedConnection(database_url)
        self._unsent: deque[_Waiter] = deque()
        self._waiters: deque[_Waiter] = deque()
        """Waiters of the last `timeout_s`, the oldest first, so that one timer serves them all."""
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._pending_extensions: deque[_PendingExtension] = deque()
        self._pending_voids: set[UUID] = set()
        self._unpriced = UnpricedCounts()
        self._open: set[UUID] = set()
        self._work = asyncio.Event()
        self._control_work = asyncio.Event()
        self._renew_at = 0.0
        self._closing = False
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start the tasks; they connect in the background, so PostgreSQL may be away."""
        self._renew_at = self._clock.monotonic() + self._ttl_s / 3
        self._tasks = [
            asyncio.create_task(self._serve_holds(connection)) for connection in self._hold_connections
        ]
        self._tasks.append(asyncio.create_task(self._serve_control()))

    async def close(self) -> None:
        """Send what is pending, voids included, for at most 2 s, then disconnect."""
        self._closing = True
        self._work.set()
        self._control_work.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2.0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
        for connection in (*self._hold_connections, self._control_connection):
            await connection.close()

    @property
    def connected(self) -> bool:
        """Whether one of the connections for holds was open when last used."""
        return any(connection.connected for connection in self._hold_connections)

    @property
    def open_requests(self) -> int:
        """Holds that this process believes to be open."""
        return len(self._open)

    async def place(self, request: HoldRequest) -> HoldGranted:
        """Reserve money for `request`.

        Retries for up to WAIT_FOR_HOLDS_S when only other open holds cause the refusal. Cancelling leaves no hold.
        Raises InsufficientCredit or BudgetExceeded; Unavailable when PostgreSQL does not answer within `timeout_s`, or
        with the code `model_unpriced` when the model has no price.
        """
        deadline = self._clock.monotonic() + WAIT_FOR_HOLDS_S
        while True:
            row = await self._request_hold(request)
            if row["verdict"] == "granted":
                return _granted(row)
            refusal = self._refusal(request, row)
            if not row["can_wait"] or self._clock.monotonic() + _RETRY_EVERY_S > deadline or self._closing:
                raise refusal
            await asyncio.sleep(_RETRY_EVERY_S)

    async def extend(self, request_id: UUID, output_tokens: int) -> bool:
        """Make the hold cover `output_tokens` more output tokens; False means: end the answer as `budget_stopped`.

        Returns True when PostgreSQL does not answer within `timeout_s`: running requests may finish, and settlement
        charges what is available.
        """
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._pending_extensions.append(_PendingExtension(request_id, output_tokens, future))
        self._control_work.set()
        done, _ = await asyncio.wait({future}, timeout=self._timeout_s)
        return future.result() if done else True

    def void(self, request_id: UUID) -> None:
        """Release a request's money in the background; retried until PostgreSQL has done it."""
        self._open.discard(request_id)
        self._pending_voids.add(request_id)
        self._control_work.set()

    def stop_renewing(self, request_ids: Iterable[UUID]) -> None:
        """Stop renewing the holds of settled requests. Optional: the next renewal would find them closed."""
        self._open.difference_update(request_ids)

    async def _request_hold(self, request: HoldRequest) -> asyncpg.Record:
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
        """Fail the waiters whose deadline has passed; `_deliver` voids a hold that is granted to one of them later."""
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
        """Void the hold of a cancelled waiter, now if it is granted already, else in `_deliver`."""
        future = waiter.future
        if not future.done():
            future.cancel()
        elif (
            not future.cancelled() and future.exception() is None and future.result()["verdict"] == "granted"
        ):
            self.void(waiter.request.request_id)

    def _refusal(self, request: HoldRequest, row: asyncpg.Record) -> PenstockError:
        if row["verdict"] == "unpriced":
            self._unpriced.add(request.model, request.tier, request.tenant_id)
        return hold_refusal(
            row["verdict"],
            model=request.model,
            tier=request.tier,
            funds=int(row["funds"] or 0),
            held=int(row["held"] or 0),
            needed=int(row["needed"] or 0),
            open_requests=int(row["open_holds"] or 0),
            top_up_url=self._top_up_url,
        )

    # -- holds -----------------------------------------------------------------------------------------------------

    async def _serve_holds(self, connection: DedicatedConnection) -> None:
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
            )
        except (ConnectionUnavailable, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            if not isinstance(error, ConnectionUnavailable):
                log.warning("holds refused by the database: %s", error)
            for waiter in batch:
                # The hold may have been committed although the answer was lost.
                self.void(waiter.request.request_id)
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
                self.void(waiter.request.request_id)
            return
        if granted:
            self._open.add(waiter.request.request_id)
        waiter.future.set_result(row)

    # -- voids, extensions, renewals -------------------------------------------------------------------------------

    async def _serve_control(self) -> None:
        backoff = Backoff()
        while not (self._closing and not self._pending_voids and not self._unpriced):
            wait_s = max(self._renew_at - self._clock.monotonic(), 0.0)
            if not self._closing:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._control_work.wait(), timeout=wait_s)
            self._control_work.clear()
            await asyncio.sleep(0)
            try:
                await self._extend_all()
                await self._void_all()
                due = self._clock.monotonic() >= self._renew_at
                if due:
                    await self._renew_all()
                    self._renew_at = self._clock.monotonic() + self._ttl_s / 3
                if due or self._closing:
                    await self._unpriced.write(self._control_connection)
            except (ConnectionUnavailable, *RETRYABLE_ERRORS):
                self._resolve_extensions(True)  # PostgreSQL is away: running requests may finish
                if self._closing:
                    return
                self._control_work.set()
                await backoff.wait()
            except (asyncpg.PostgresError, asyncpg.InterfaceError):
                log.exception("extending, voiding or renewing holds failed")
                self._resolve_extensions(False)
                self._control_work.set()
                await backoff.wait()
            else:
                backoff.reset()

    async def _extend_all(self) -> None:
        while self._pending_extensions:
            batch = [
                self._pending_extensions[i] for i in range(min(len(self._pending_extensions), MAX_BATCH))
            ]
            rows = await self._control_connection.fetch(
                "SELECT * FROM penstock_extend($1, $2)",
                [one.request_id for one in batch],
                [one.tokens for one in batch],
            )
            answers = {row["request_id"]: bool(row["extended"]) for row in rows}
            for one in batch:
                self._pending_extensions.popleft()
                if not one.future.done():
                    one.future.set_result(answers[one.request_id])

    def _resolve_extensions(self, extended: bool) -> None:
        while self._pending_extensions:
            one = self._pending_extensions.popleft()
            if not one.future.done():
                one.future.set_result(extended)

    async def _void_all(self) -> None:
        while self._pending_voids:
            batch = list(self._pending_voids)[:500]
            await self._control_connection.fetch("SELECT penstock_void($1)", batch)
            self._pending_voids.difference_update(batch)

    async def _renew_all(self) -> None:
        open_ids = list(self._open)
        for start in range(0, len(open_ids), 500):
            batch = open_ids[start : start + 500]
            rows = await self._control_connection.fetch("SELECT penstock_renew($1) AS request_id", batch)
            self._open.difference_update(set(batch) - {row["request_id"] for row in rows})


def _granted(row: asyncpg.Record) -> HoldGranted:
    return HoldGranted(
        request_id=row["request_id"],
        admitted_at=row["admitted_at"],
        price=PriceVersion(
            row["price_id"],
            row["price_input"],
            row["price_cached"],
            row["price_output"],
            row["price_reasoning"],
        ),
        list_price=PriceVersion(
            row["list_id"], row["list_input"], row["list_cached"], row["list_output"], row["list_reasoning"]
        ),
        amount=int(row["amount"]),
        output_tokens=row["output_tokens"],
    )
