"""Holds of one API process: money reserved before a request runs, and released when it does not run.

A hold that is not renewed expires (billing/metering/reaper.py), so a fault in this process cannot reserve money for
ever.
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
from billing.metering.hold_queue import LOCK_TIMEOUT_MS, MAX_BATCH, HoldQueue
from billing.metering.records import HoldGranted, HoldRequest, PriceVersion
from billing.metering.refusals import hold_refusal
from billing.metering.unpriced import UnpricedCounts
from core.clock import Clock
from core.errors import PenstockError
from core.supervise import supervise

log = logging.getLogger(__name__)

WAIT_FOR_HOLDS_S = 2.0
"""How long a request is retried when only other open holds cause its refusal."""
_RETRY_EVERY_S = 0.1
_BUSY_RETRY_S = 0.02
"""Seconds after which extensions and voids are sent again whose account was locked."""
_MAX_PRICES = 4096
"""Price versions kept in memory."""
_PRICE_COLUMNS = ("id", "input", "cached", "output", "reasoning")
"""Columns of a price version in a row of `penstock_hold`, each after the prefix `price_` or `list_`."""


class _PendingExtension(msgspec.Struct):
    """A request that waits for `tokens` more output tokens."""

    request_id: UUID
    tokens: int
    future: "asyncio.Future[bool]"


class HoldManager:
    """Places, extends, renews and voids the holds of one process incarnation.

    `ttl_s` must equal the reaper's; holds are renewed every third of it. `timeout_s` bounds the wait for one answer of
    PostgreSQL, `longest_wait_s` that of a request while PostgreSQL answers others. `connections` serve `place`, two
    more serve it for organisations whose account is locked, and one serves the rest. `top_up_url` goes into refusals.
    """

    def __init__(
        self,
        database_url: str,
        incarnation: str,
        *,
        ttl_s: float,
        clock: Clock,
        timeout_s: float = 0.5,
        longest_wait_s: float = 10.0,
        connections: int = 2,
        top_up_url: str = "",
    ) -> None:
        self._ttl_s = ttl_s
        self._clock = clock
        self._timeout_s = timeout_s
        self._top_up_url = top_up_url
        self._open: set[UUID] = set()
        self._queue = HoldQueue(
            [DedicatedConnection(database_url, durable=False) for _ in range(connections)],
            [
                DedicatedConnection(database_url, durable=False, lock_timeout_ms=LOCK_TIMEOUT_MS)
                for _ in range(2)
            ],
            incarnation,
            timeout_s=timeout_s,
            longest_wait_s=longest_wait_s,
            on_granted=self._open.add,
            on_unclaimed=self.void,
        )
        self._control_connection = DedicatedConnection(database_url)
        self._pending_extensions: deque[_PendingExtension] = deque()
        self._pending_voids: set[UUID] = set()
        self._unpriced = UnpricedCounts()
        self._prices: dict[int, PriceVersion] = {}
        """Price versions by id, which never change."""
        self._control_work = asyncio.Event()
        self._renew_at = 0.0
        self._closing = False
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start the tasks; they connect in the background, so PostgreSQL may be away."""
        self._renew_at = self._clock.monotonic() + self._ttl_s / 3
        self._tasks = [*self._queue.start(), supervise("holds-control", self._serve_control)]

    async def close(self) -> None:
        """Send what is pending, voids included, for at most 2 s, then disconnect."""
        self._closing = True
        self._queue.stop()
        self._control_work.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2.0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._queue.close()
        await self._control_connection.close()

    @property
    def connected(self) -> bool:
        """Whether one of the connections for holds was open when last used."""
        return self._queue.connected

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
            row = await self._queue.ask(request)
            if row["verdict"] == "granted":
                return self._granted(row)
            refusal = self._refusal(request, row)
            if not row["can_wait"] or self._clock.monotonic() + _RETRY_EVERY_S > deadline or self._closing:
                raise refusal
            await asyncio.sleep(_RETRY_EVERY_S)

    async def extend(self, request_id: UUID, output_tokens: int) -> bool:
        """Make the hold cover `output_tokens` more output tokens; False means: end the answer as `budget_stopped`.

        Returns True when PostgreSQL does not answer within `timeout_s`: running requests may finish. The extension is
        then booked once PostgreSQL answers, and settlement charges what is available.
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

    def _granted(self, row: asyncpg.Record) -> HoldGranted:
        price = self._prices.get(row["price_id"]) or self._remember(row, "price")
        list_price = self._prices.get(row["list_id"]) or self._remember(row, "list")
        return HoldGranted(
            request_id=row["request_id"],
            admitted_at=row["admitted_at"],
            price=price,
            list_price=list_price,
            amount=int(row["amount"]),
            output_tokens=row["output_tokens"],
            whole=row["whole"],
        )

    def _remember(self, row: asyncpg.Record, prefix: str) -> PriceVersion:
        if len(self._prices) >= _MAX_PRICES:
            self._prices.clear()
        price = PriceVersion(*(row[f"{prefix}_{name}"] for name in _PRICE_COLUMNS))
        self._prices[price.id] = price
        return price

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
            budget_scope=row["budget_scope"] or "tenant",
            budget_label=row["budget_label"],
        )

    # -- voids, extensions, renewals -------------------------------------------------------------------------------

    async def _serve_control(self) -> None:
        backoff = Backoff()
        while not (self._closing and not self._pending_voids and not self._unpriced):
            wait_s = _BUSY_RETRY_S if self._closing else max(self._renew_at - self._clock.monotonic(), 0.0)
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
        busy: list[_PendingExtension] = []
        while self._pending_extensions:
            batch = [
                self._pending_extensions[i] for i in range(min(len(self._pending_extensions), MAX_BATCH))
            ]
            rows = await self._control_connection.fetch(
                "SELECT * FROM penstock_extend($1, $2)",
                [one.request_id for one in batch],
                [one.tokens for one in batch],
            )
            answers = {row["request_id"]: row["extended"] for row in rows}
            for one in batch:
                self._pending_extensions.popleft()
                if one.future.done():
                    continue
                if answers[one.request_id] is None:
                    busy.append(one)
                else:
                    one.future.set_result(answers[one.request_id])
        if busy:
            self._pending_extensions.extend(busy)
            self._work_soon()

    def _work_soon(self) -> None:
        asyncio.get_running_loop().call_later(_BUSY_RETRY_S, self._control_work.set)

    def _resolve_extensions(self, extended: bool) -> None:
        while self._pending_extensions:
            one = self._pending_extensions.popleft()
            if not one.future.done():
                one.future.set_result(extended)

    async def _void_all(self) -> None:
        pending = list(self._pending_voids)
        for start in range(0, len(pending), 500):
            batch = pending[start : start + 500]
            [row] = await self._control_connection.fetch("SELECT penstock_void($1) AS busy", batch)
            self._pending_voids.difference_update(set(batch).difference(row["busy"]))
        if self._pending_voids:
            self._work_soon()

    async def _renew_all(self) -> None:
        open_ids = list(self._open)
        for start in range(0, len(open_ids), 500):
            batch = open_ids[start : start + 500]
            rows = await self._control_connection.fetch("SELECT penstock_renew($1) AS request_id", batch)
            self._open.difference_update(set(batch) - {row["request_id"] for row in rows})
