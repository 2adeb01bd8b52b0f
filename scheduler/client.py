"""The client of the scheduler in an API process: many calls over one connection, with reconnection and fallback.

A call survives a restart of the scheduler: placements and queued requests are announced to the next incarnation.
After FALLBACK_AFTER_S without a scheduler the client places requests itself (scheduler/fallback.py).
"""

import asyncio
import logging
import math
import random
from dataclasses import dataclass

import msgspec

from core.clock import Clock
from core.errors import Refused, Unavailable
from core.ids import incarnation
from core.supervise import supervise
from scheduler import fallback
from scheduler.announcements import MAX_COUNTERS, CounterCache, announced_placement, announcements
from scheduler.link import Link
from scheduler.messages import (
    WIRE_VERSION,
    AnnouncedPlacement,
    AnnouncedRequest,
    Answers,
    ClientBatch,
    ClientHello,
    Counters,
    PlaceRefused,
    TenantCounter,
    ToClient,
    Welcome,
)
from scheduler.outbox import Outbox
from scheduler.wire import Placement, PlaceRequest, PoolSnapshot, Released
from workers.wire import CommandResult, ReplicaCommand

FALLBACK_AFTER_S = 1.0
"""Seconds without a scheduler after which the client places requests itself; a supervised restart takes less."""
SILENT_S = 4.0
"""Seconds without a message after which the scheduler counts as dead; it sends a snapshot every second."""
SWEEP_S = 0.1
"""Seconds between two runs of the timer for silence, fallback, deadlines and progress."""
LINGER_S = 0.002
"""Seconds for which first tokens, releases and progress wait for others, or for a request that leaves at once. They do
not wait while this process has queued requests, which may need the freed slot."""
DEADLINE_SLACK_S = 1.0
"""Seconds after a deadline until the client refuses the request itself, when the scheduler has not answered."""
BACKOFF_S = (0.05, 1.0)
"""Shortest and longest pause between two connection attempts, in seconds."""
CONNECT_TIMEOUT_S = 2.0
"""Timeout of a connection attempt, in seconds."""
MAX_ANNOUNCED_BYTES = 256 * 1024 * 1024
"""Unsent bytes that the client's connection may hold, for large announcements."""

log = logging.getLogger(__name__)
_decoder = msgspec.msgpack.Decoder(ToClient)
PlacementKey = tuple[str, str]
"""Request id and replica id."""


@dataclass(slots=True)
class _Waiting:
    request: PlaceRequest
    future: "asyncio.Future[Placement]"
    since: float


@dataclass(slots=True)
class _HeldPlacement:
    placement: Placement
    request: PlaceRequest
    since: float
    produced: int = 0
    prefilled: bool = False
    counted_by: str = ""
    """Epoch of the scheduler that charged the placement last."""

    def announced(self, now: float) -> AnnouncedPlacement:
        """The placement as it is announced to a scheduler that may not know it."""
        return announced_placement(
            self.request,
            self.placement,
            produced=self.produced,
            prefilled=self.prefilled,
            age_s=now - self.since,
            counted_by=self.counted_by,
        )


class _ClientLink(Link):
    """One connection, which reports its events to the client."""

    def __init__(self, client: "SchedulerClient") -> None:
        super().__init__(max_unsent_bytes=MAX_ANNOUNCED_BYTES)
        self.client = client
        self.outbox = Outbox()

    def take_batch(self) -> list[ClientBatch]:
        """What the client has to say since the last flush."""
        return self.outbox.take()

    def on_frame(self, frame: bytes) -> None:
        self.client._receive(self, _decoder.decode(frame))

    def on_malformed(self, error: Exception) -> None:
        log.error("the scheduler sent what cannot be read, reconnecting: %s", error)

    def on_lost(self) -> None:
        self.client._on_disconnect(self)


class SchedulerClient:
    """Placements, releases and commands over one connection, and the last snapshot.

    `name` is the role of the process; a random part is appended to make it unique.
    """

    def __init__(
        self, host: str, port: int, token: str, *, name: str, clock: Clock, rng: random.Random
    ) -> None:
        self.name = incarnation(name)
        self.connected = False
        self.denied = ""
        """Why the scheduler rejected the connection; empty if it did not."""
        self._host, self._port, self._token = host, port, token
        self._clock, self._rng = clock, rng
        self._link: _ClientLink | None = None
        self._snapshot = PoolSnapshot()
        self._waiting: dict[str, _Waiting] = {}
        self._expiry_at = math.inf
        """No request in `_waiting` has reached its deadline before this time."""
        self._held: dict[PlacementKey, _HeldPlacement] = {}
        self._advanced: dict[PlacementKey, _HeldPlacement] = {}
        """Placements with output tokens that have not been reported."""
        self._running: dict[str, int] = {}
        self._commands: dict[str, asyncio.Future[CommandResult]] = {}
        self._away_since = clock.monotonic()
        self._last_seen_at = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._counters = CounterCache(MAX_COUNTERS)
        self._snapshot_received = asyncio.Event()
        """Set once a snapshot has arrived on the present connection."""

    async def start(self) -> None:
        """Start to connect. Calls wait until the connection is up."""
        self._away_since = self._clock.monotonic()
        self._tasks = [
            supervise("scheduler-connection", self._stay_connected),
            supervise("scheduler-sweep", self._sweep),
        ]

    async def close(self) -> None:
        """Disconnect. Waiting calls are refused; the scheduler frees the placements two seconds later."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self._link is not None:
            await self._link.hang_up()
        for waiting in list(self._waiting.values()):
            self._refuse(waiting, 503, "shutting_down", "this API process is shutting down", 1.0)

    async def place(self, request: PlaceRequest) -> Placement:
        """Wait for a replica, at most `request.deadline_s` seconds. Cancellation removes the request from the queue.

        The placement must be released exactly once. Raises Refused (429 or 503, with `details`: reason, position,
        warm_replicas, predicted_wait_s), and ValueError when a request with this id waits already.
        """
        if request.request_id in self._waiting:
            raise ValueError(f"request {request.request_id} already waits for a placement")
        future: asyncio.Future[Placement] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(request, future, self._clock.monotonic())
        self._waiting[request.request_id] = waiting
        self._expiry_at = min(self._expiry_at, waiting.since + request.deadline_s)
        if (outbox := self._outbox()) is not None:
            outbox.place(request)
            self._send_soon()
        elif self._is_away():
            self._place_locally(waiting)
        try:
            return await future
        except asyncio.CancelledError:
            self._abandon(waiting)
            raise

    def prefill_done(self, placement: Placement) -> None:
        """Report the first token of a placement."""
        held = self._held.get((placement.request_id, placement.replica_id))
        if held is not None and not held.prefilled:
            held.prefilled = True
            if (outbox := self._outbox()) is not None:
                outbox.prefill_done(placement.request_id, placement.replica_id)
                self._send_later()

    def progress(self, placement: Placement, output_tokens: int) -> None:
        """Note the output tokens of a placement so far; they are reported every SWEEP_S."""
        key = (placement.request_id, placement.replica_id)
        held = self._held.get(key)
        if held is not None and output_tokens > held.produced:
            held.produced = output_tokens
            self._advanced[key] = held

    def release(self, released: Released) -> None:
        """Release a placement. An unknown or released placement is ignored."""
        if self._drop((released.request_id, released.replica_id)) is None:
            return
        self._send_release(released)
        if not self.connected and self._is_away():
            self._place_waiting_locally()

    def snapshot(self) -> PoolSnapshot:
        """The last snapshot; empty before the first."""
        return self._snapshot

    async def fresh_snapshot(self) -> PoolSnapshot:
        """A snapshot of a live connection, waiting for one. Raises Unavailable without a scheduler."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S * 2):
                await self._snapshot_received.wait()
        except TimeoutError:
            why = self.denied or f"no answer at {self._host}:{self._port}"
            raise Unavailable(f"the scheduler cannot be reached: {why}", retry_after_s=2.0) from None
        return self._snapshot

    async def command(self, command: ReplicaCommand) -> CommandResult:
        """Send a command to a replica and wait for its agent's answer.

        Raises Unavailable when the scheduler cannot be reached.
        """
        await self.fresh_snapshot()
        future: asyncio.Future[CommandResult] = asyncio.get_running_loop().create_future()
        self._commands[command.command_id] = future
        if self.connected and self._link is not None:
            self._link.send(command)
        try:
            return await future
        finally:
            self._commands.pop(command.command_id, None)

    # Connection

    async def _stay_connected(self) -> None:
        backoff_s = BACKOFF_S[0]
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    _, link = await loop.create_connection(lambda: _ClientLink(self), self._host, self._port)
            except (OSError, TimeoutError):
                log.debug("the scheduler at %s:%s does not answer", self._host, self._port)
            else:
                link.send(ClientHello(self._token, self.name, WIRE_VERSION))
                self._last_seen_at = self._clock.monotonic()
                self._link = link
                await link.lost.wait()
                self._on_disconnect(link)
                if not self.denied:
                    backoff_s = BACKOFF_S[0]
            await asyncio.sleep(backoff_s * (0.5 + self._rng.random()))
            backoff_s = min(backoff_s * 2, BACKOFF_S[1])

    def _receive(self, link: _ClientLink, message: ToClient) -> None:
        if link is not self._link:
            return
        self._last_seen_at = self._clock.monotonic()
        match message:
            case Answers():
                for placement in message.placed:
                    self._on_placement(placement)
                for refusal in message.refused:
                    self._on_refusal(refusal)
            case Counters():
                self._counters.update(message.epoch, message.counters)
            case PoolSnapshot():
                self._snapshot = message
                self._snapshot_received.set()
            case CommandResult():
                future = self._commands.get(message.command_id)
                if future is not None and not future.done():
                    future.set_result(message)
            case Welcome():
                self._on_welcome(link, message)

    def _on_welcome(self, link: _ClientLink, welcome: Welcome) -> None:
        error = welcome.error
        if not error and welcome.wire != WIRE_VERSION:
            error = (
                f"the scheduler speaks version {welcome.wire} of the wire, this process {WIRE_VERSION}: "
                "run both from one release"
            )
        if error:
            self.denied = error
            log.error("the scheduler turned this process away: %s", error)
            link.close()
            return
        now = self._clock.monotonic()
        self.connected, self.denied = True, ""
        held = [each.announced(now) for each in self._held.values()]
        counters = self._counters.not_from(welcome.epoch)
        for part in announcements(held, self._still_waiting(now), counters):
            link.send(part)
        for each in self._held.values():
            each.counted_by = welcome.epoch

    def _still_waiting(self, now: float) -> list[AnnouncedRequest]:
        queued = []
        for waiting in self._waiting.values():
            age_s = now - waiting.since
            left_s = max(0.0, waiting.request.deadline_s - age_s)
            queued.append(
                AnnouncedRequest(msgspec.structs.replace(waiting.request, deadline_s=left_s), age_s)
            )
        return queued

    def _on_disconnect(self, link: _ClientLink) -> None:
        if link is not self._link:
            return
        self._link = None
        self._snapshot_received.clear()
        if self.connected:  # a connection without an answer does not restart the time without a scheduler
            self._away_since = self._clock.monotonic()
        self.connected = False
        for command_id, future in self._commands.items():
            if not future.done():
                lost = "the connection to the scheduler was lost; the command may or may not have run"
                future.set_result(CommandResult(command_id, False, lost))

    def _outbox(self) -> Outbox | None:
        """Where messages are collected; None when not connected: the next announcement contains what still matters."""
        return self._link.outbox if self.connected and self._link is not None else None

    def _send_soon(self) -> None:
        """Send what is collected at the end of this event loop tick, and at once when it is much."""
        if (link := self._link) is not None:
            if link.outbox.full:
                link.flush()
            else:
                link.flush_soon()

    def _send_later(self) -> None:
        """Send what is collected within LINGER_S, and with this tick while requests are queued."""
        if (link := self._link) is not None:
            if self._waiting or link.outbox.full:
                self._send_soon()
            else:
                link.flush_soon(LINGER_S)

    def _send_release(self, released: Released) -> None:
        if (outbox := self._outbox()) is not None:
            outbox.release(released)
            self._send_later()

    def _send_cancel(self, request_id: str) -> None:
        if (outbox := self._outbox()) is not None:
            outbox.cancel(request_id)
            self._send_soon()

    # Answers

    def _on_placement(self, placement: Placement) -> None:
        key = (placement.request_id, placement.replica_id)
        if key in self._held:
            return
        waiting = self._waiting.pop(placement.request_id, None)
        if waiting is None or waiting.future.done():
            self._send_release(Released(placement.request_id, placement.replica_id, dispatched=False))
            return
        self._hold(waiting, placement)

    def _hold(self, waiting: _Waiting, placement: Placement) -> None:
        self._waiting.pop(placement.request_id, None)
        self._held[placement.request_id, placement.replica_id] = _HeldPlacement(
            placement, waiting.request, self._clock.monotonic(), counted_by=placement.epoch
        )
        if placement.epoch:
            request = waiting.request
            counter = TenantCounter(request.tenant_id, request.model, placement.service, request.tier)
            self._counters.update(placement.epoch, [counter])
        self._running[placement.replica_id] = self._running.get(placement.replica_id, 0) + 1
        waiting.future.set_result(placement)

    def _drop(self, key: PlacementKey) -> _HeldPlacement | None:
        held = self._held.pop(key, None)
        self._advanced.pop(key, None)
        if held is not None:
            left = self._running[key[1]] - 1
            if left:
                self._running[key[1]] = left
            else:
                del self._running[key[1]]
        return held

    def _on_refusal(self, refusal: PlaceRefused) -> None:
        waiting = self._waiting.get(refusal.request_id)
        if waiting is None:
            return
        self._refuse(
            waiting,
            refusal.status,
            refusal.reason,
            refusal.message,
            refusal.retry_after_s,
            position=refusal.position,
            warm_replicas=refusal.warm_replicas,
            predicted_wait_s=refusal.predicted_wait_s,
        )

    def _refuse(
        self, waiting: _Waiting, status: int, reason: str, message: str, retry_s: float, **facts: float
    ) -> None:
        self._waiting.pop(waiting.request.request_id, None)
        details = {"reason": reason, "position": 0, "warm_replicas": 0, "predicted_wait_s": 0.0} | facts
        details["retry_after_s"] = retry_s
        code = "tenant_share" if status == 429 else "no_capacity"
        if not waiting.future.done():
            waiting.future.set_exception(
                Refused(message, status=status, code=code, details=details, retry_after_s=retry_s)
            )

    def _abandon(self, waiting: _Waiting) -> None:
        """Handle the cancellation of a caller, possibly in the tick in which its placement arrived."""
        request_id = waiting.request.request_id
        if self._waiting.get(request_id) is waiting:
            del self._waiting[request_id]
            self._send_cancel(request_id)
        elif not waiting.future.cancelled() and waiting.future.exception() is None:
            self.release(Released(request_id, waiting.future.result().replica_id, dispatched=False))

    # Without the scheduler

    def _is_away(self) -> bool:
        return self._clock.monotonic() - self._away_since > FALLBACK_AFTER_S

    def _place_locally(self, waiting: _Waiting) -> None:
        placement = fallback.choose(waiting.request, self._snapshot, self._running, self._rng)
        if placement is not None and not waiting.future.done():
            placement.queue_s = self._clock.monotonic() - waiting.since
            self._hold(waiting, placement)

    def _place_waiting_locally(self) -> None:
        for waiting in list(self._waiting.values()):
            self._place_locally(waiting)

    async def _sweep(self) -> None:
        """The timer: dead connections, fallback, deadlines and progress."""
        while True:
            await asyncio.sleep(SWEEP_S)
            now = self._clock.monotonic()
            if self._link is not None and now - self._last_seen_at > SILENT_S:
                log.warning("the scheduler has been silent for %.0f s, reconnecting", SILENT_S)
                self._link.abort()
            if not self.connected and self._is_away():
                self._place_waiting_locally()
            self._expire(now)
            self._report_progress()

    def _report_progress(self) -> None:
        """Send the progress of all placements since the last report."""
        advanced, self._advanced = self._advanced, {}
        outbox = self._outbox()
        if not advanced or outbox is None:
            return
        for (request_id, replica_id), held in advanced.items():
            outbox.progress(request_id, replica_id, held.produced)
            if outbox.full:
                self._send_soon()
        self._send_later()

    def _expire(self, now: float) -> None:
        slack_s = DEADLINE_SLACK_S if self.connected else 0.0
        if now - slack_s < self._expiry_at:
            return
        for waiting in list(self._waiting.values()):
            if now - waiting.since > waiting.request.deadline_s + slack_s:
                self._send_cancel(waiting.request.request_id)
                message = "the scheduler is away and no replica could be chosen without it"
                self._refuse(waiting, 503, "scheduler_away", message, 2.0)
        ends = (each.since + each.request.deadline_s for each in self._waiting.values())
        self._expiry_at = min(ends, default=math.inf)
