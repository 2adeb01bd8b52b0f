"""The client of the scheduler in an API process: many calls over one connection, with fallback.

A call survives a restart of the scheduler, and the take-over by a standby: placements and queued requests are announced
to the next incarnation. While the scheduler is away the client places requests itself (scheduler/fallback.py).
"""

import asyncio
import math
import random
from collections import Counter
from collections.abc import Sequence

import msgspec

from core.addresses import Address
from core.clock import Clock
from core.errors import Refused, Unavailable
from core.ids import incarnation
from core.supervise import supervise
from scheduler import fallback
from scheduler.announcements import MAX_COUNTERS, CounterCache, announcements
from scheduler.availability import OFFLINE
from scheduler.client_tls import ClientTls
from scheduler.connection import Listener, SchedulerConnection
from scheduler.core.policy import Reason
from scheduler.held import HeldPlacement, Waiting, counted_on, share_texts
from scheduler.messages import (
    AnnouncedRequest,
    Answers,
    Counters,
    EngineKeys,
    HostEngines,
    PlaceRefused,
    TenantCounter,
    ToClient,
)
from scheduler.wire import Placement, PlaceRequest, PoolSnapshot, Released
from workers.wire import CommandResult, ReplicaCommand

SWEEP_S = 0.1
"""Seconds between two runs of the timer for silence, fallback, deadlines and progress."""
DEADLINE_SLACK_S = 1.0
"""Seconds after a deadline until the client refuses the request itself, when the scheduler has not answered."""
TAKE_OVER_S = 15.0
"""Seconds after the loss of the scheduler for which requests still wait for a replica to wake: the next scheduler takes
over within these and goes on with the wakes."""
FRESH_TIMEOUT_S = 4.0
"""Seconds for which `fresh_snapshot` waits for a scheduler."""

_OFFLINE = (Reason.UNKNOWN_MODEL, Reason.NOT_WARM)
"""Reasons of refusals that hold until the operator acts."""
PlacementKey = tuple[str, str]
"""Request id and replica id."""


class SchedulerClient(Listener):
    """Placements, releases and commands over the connection to the scheduler that serves, and the last snapshot.

    `addresses` are those of all schedulers. `name` is the role of the process; a random part is appended to make it
    unique.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        token: str,
        *,
        name: str,
        clock: Clock,
        rng: random.Random,
        takes_keys: bool = False,
        tls: ClientTls | None = None,
    ) -> None:
        """`takes_keys`: whether placements need the keys of their engines. Without `tls` connections are plain."""
        self.name = incarnation(name)
        self._clock, self._rng = clock, rng
        self._connection = SchedulerConnection(
            addresses,
            token,
            name=self.name,
            listener=self,
            clock=clock,
            rng=rng,
            takes_keys=takes_keys,
            tls=tls,
        )
        self._snapshot = PoolSnapshot()
        self._known = PoolSnapshot()
        """The last snapshot that is complete; until there is one, the last. Requests are placed by it without a
        scheduler: one that has just begun does not know all replicas yet."""
        self._lost_at = -math.inf
        """When the last connection was lost."""
        self._waiting: dict[str, Waiting] = {}
        self._expiry_at = math.inf
        """No request in `_waiting` has reached its deadline before this time."""
        self._held: dict[PlacementKey, HeldPlacement] = {}
        self._advanced: dict[PlacementKey, HeldPlacement] = {}
        """Placements with output tokens that have not been reported."""
        self._running: Counter[str] = Counter()
        """Placements by replica, and by rank (`rank_id`)."""
        self._had: Counter[str] = Counter()
        """What `_running` was when the scheduler was lost."""
        self._commands: dict[str, asyncio.Future[CommandResult]] = {}
        self._sweeper: asyncio.Task[None] | None = None
        self._counters = CounterCache(MAX_COUNTERS)
        self._engines: dict[str, HostEngines] = {}
        """By replica, of hosts that have joined."""
        """By replica, of hosts with keys of their own."""
        self._snapshot_received = asyncio.Event()
        """Set once a snapshot has arrived on the present connection."""

    async def start(self) -> None:
        """Start to connect. Calls wait until the connection is up."""
        await self._connection.start()
        self._sweeper = supervise("scheduler-sweep", self._sweep)

    async def close(self) -> None:
        """Disconnect. Waiting calls are refused; the scheduler frees the placements two seconds later."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
            self._sweeper = None
        await self._connection.close()
        for waiting in list(self._waiting.values()):
            self._refuse(waiting, 503, "shutting_down", "this API process is shutting down", 1.0)

    @property
    def connected(self) -> bool:
        """Whether a scheduler has accepted the connection."""
        return self._connection.connected

    @property
    def can_place(self) -> bool:
        """Whether requests can be placed: by a scheduler, or without one on the replicas that were known last."""
        return self.connected or bool(self._known.replicas)

    @property
    def denied(self) -> str:
        """Why the scheduler rejected the connection; empty if it did not."""
        return self._connection.denied

    async def place(self, request: PlaceRequest) -> Placement:
        """Wait for a replica, at most as long as the request's deadlines allow.

        Cancellation removes the request from the queue. The placement must be released exactly once. Raises Refused
        (429 or 503, with `details`: reason, position, warm_replicas, predicted_wait_s), and ValueError when a request
        with this id waits already.
        """
        if request.request_id in self._waiting:
            raise ValueError(f"request {request.request_id} already waits for a placement")
        future: asyncio.Future[Placement] = asyncio.get_running_loop().create_future()
        waiting = Waiting(request, future, self._clock.monotonic())
        self._waiting[request.request_id] = waiting
        self._expiry_at = min(self._expiry_at, waiting.since + request.deadline_s)
        if (outbox := self._connection.outbox) is not None:
            outbox.place(request)
            self._connection.send_soon()
        elif (
            self._connection.away and len(self._waiting) == 1
        ):  # those that wait already have their turn first
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
            if (outbox := self._connection.outbox) is not None:
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

    def snapshot(self) -> PoolSnapshot:
        """The last snapshot; empty before the first."""
        return self._snapshot

    async def fresh_snapshot(self) -> PoolSnapshot:
        """A snapshot of a live connection, waiting for one. Raises Unavailable without a scheduler."""
        try:
            async with asyncio.timeout(FRESH_TIMEOUT_S):
                await self._snapshot_received.wait()
        except TimeoutError:
            why = self.denied or f"no answer at {self._connection.address}"
            raise Unavailable(f"the scheduler cannot be reached: {why}", retry_after_s=2.0) from None
        return self._snapshot

    async def command(self, command: ReplicaCommand) -> CommandResult:
        """Send a command to a replica and wait for its agent's answer.

        Raises Unavailable when the scheduler cannot be reached.
        """
        await self.fresh_snapshot()
        future: asyncio.Future[CommandResult] = asyncio.get_running_loop().create_future()
        self._commands[command.command_id] = future
        self._connection.send(command)
        try:
            return await future
        finally:
            self._commands.pop(command.command_id, None)

    # The connection's events

    def on_message(self, message: ToClient) -> None:
        """Take an answer, counters or the snapshot."""
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
                if message.complete or not self._known.complete:
                    self._known = message
                self._snapshot_received.set()
            case EngineKeys():
                known = {each.replica_id for each in self._known.replicas}
                kept = {name: host for name, host in self._engines.items() if name in known}
                self._engines = kept | {name: host for host in message.hosts for name in host.replicas}
            case CommandResult():
                future = self._commands.get(message.command_id)
                if future is not None and not future.done():
                    future.set_result(message)

    def on_connected(self, epoch: str) -> None:
        """Announce what the scheduler may not know."""
        now = self._clock.monotonic()
        held = [each.announced(now) for each in self._held.values()]
        counters = self._counters.not_from(epoch)
        for part in announcements(held, self._still_waiting(now), counters):
            self._connection.send(part)
        for each in self._held.values():
            each.counted_by = epoch

    def _still_waiting(self, now: float) -> list[AnnouncedRequest]:
        queued = []
        for waiting in self._waiting.values():
            age_s = now - waiting.since
            request = waiting.request
            left = msgspec.structs.replace(
                request,
                deadline_s=max(0.0, request.deadline_s - age_s),
                wake_deadline_s=max(0.0, request.wake_deadline_s - age_s),
            )
            queued.append(AnnouncedRequest(left, age_s))
        return queued

    def on_disconnected(self) -> None:
        """End what cannot be asked again: commands."""
        self._lost_at = self._clock.monotonic()
        self._had = self._running.copy()
        self._snapshot_received.clear()
        for command_id, future in self._commands.items():
            if not future.done():
                lost = "the connection to the scheduler was lost; the command may or may not have run"
                future.set_result(CommandResult(command_id, False, lost))

    def _send_later(self) -> None:
        """Send what is collected a little later, and with this tick while requests are queued."""
        if self._waiting:  # they may need the freed slot
            self._connection.send_soon()
        else:
            self._connection.send_later()

    def _send_release(self, released: Released) -> None:
        if (outbox := self._connection.outbox) is not None:
            outbox.release(released)
            self._send_later()

    def _send_cancel(self, request_id: str) -> None:
        if (outbox := self._connection.outbox) is not None:
            outbox.cancel(request_id)
            self._connection.send_soon()

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

    def _hold(self, waiting: Waiting, placement: Placement) -> None:
        share_texts(placement, waiting.request)
        if (host := self._engines.get(placement.replica_id)) is not None:
            placement.engine_key, placement.engine_authority = host.key, host.authority
        self._waiting.pop(placement.request_id, None)
        self._held[placement.request_id, placement.replica_id] = HeldPlacement(
            placement, waiting.request, self._clock.monotonic(), counted_by=placement.epoch
        )
        if placement.epoch:
            request = waiting.request
            counter = TenantCounter(request.tenant_id, request.model, placement.service, request.tier)
            self._counters.update(placement.epoch, [counter])
        self._running.update(counted_on(placement))
        waiting.future.set_result(placement)

    def _drop(self, key: PlacementKey) -> HeldPlacement | None:
        held = self._held.pop(key, None)
        self._advanced.pop(key, None)
        if held is not None:
            for name in counted_on(held.placement):
                self._running[name] -= 1
                if not self._running[name]:
                    del self._running[name]
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
        self, waiting: Waiting, status: int, reason: str, message: str, retry_s: float, **facts: float
    ) -> None:
        self._waiting.pop(waiting.request.request_id, None)
        details = {"reason": reason, "position": 0, "warm_replicas": 0, "predicted_wait_s": 0.0} | facts
        details["retry_after_s"] = retry_s
        code = "tenant_share" if status == 429 else OFFLINE if reason in _OFFLINE else "no_capacity"
        if not waiting.future.done():
            waiting.future.set_exception(
                Refused(message, status=status, code=code, details=details, retry_after_s=retry_s)
            )

    def _abandon(self, waiting: Waiting) -> None:
        """Handle the cancellation of a caller, possibly in the tick in which its placement arrived."""
        request_id = waiting.request.request_id
        if self._waiting.get(request_id) is waiting:
            del self._waiting[request_id]
            self._send_cancel(request_id)
        elif not waiting.future.cancelled() and waiting.future.exception() is None:
            self.release(Released(request_id, waiting.future.result().replica_id, dispatched=False))

    # Without the scheduler

    def _place_locally(self, waiting: Waiting) -> bool:
        """Place a request by the last snapshot. False when no replica has room for it."""
        added = self._running.copy()
        added.subtract(self._had)
        placement = fallback.choose(waiting.request, self._known, added, self._rng)
        if placement is None:
            return False
        placement.queue_s = self._clock.monotonic() - waiting.since
        self._hold(waiting, placement)
        return True

    def _place_waiting_locally(self) -> None:
        waiting = {name: each for name, each in self._waiting.items() if not each.future.done()}
        fallback.place_in_turn(
            [each.request for each in waiting.values()],
            [each.request for each in self._held.values()],
            lambda request: self._place_locally(waiting[request.request_id]),
        )

    async def _sweep(self) -> None:
        """The timer: dead connections, fallback, deadlines and progress."""
        while True:
            await asyncio.sleep(SWEEP_S)
            now = self._clock.monotonic()
            self._connection.end_silent(now)
            if self._connection.away and self._waiting:
                self._place_waiting_locally()
            self._expire(now)
            self._report_progress()

    def _report_progress(self) -> None:
        """Send the progress of all placements since the last report."""
        advanced, self._advanced = self._advanced, {}
        outbox = self._connection.outbox
        if not advanced or outbox is None:
            return
        for (request_id, replica_id), held in advanced.items():
            outbox.progress(request_id, replica_id, held.produced)
            if outbox.full:
                self._connection.send_soon()
        self._send_later()

    def _expire(self, now: float) -> None:
        slack_s = DEADLINE_SLACK_S if self.connected else 0.0
        if now - slack_s < self._expiry_at:
            return
        # Without a scheduler no replica is woken.
        wakes = self.connected or now - self._lost_at < TAKE_OVER_S
        for waiting in list(self._waiting.values()):
            request = waiting.request
            limit_s = max(request.deadline_s, request.wake_deadline_s) if wakes else request.deadline_s
            if now - waiting.since > limit_s + slack_s:
                self._send_cancel(waiting.request.request_id)
                message = "the scheduler is away and no replica could be chosen without it"
                self._refuse(waiting, 503, "scheduler_away", message, 2.0)
        ends = (each.since + each.request.deadline_s for each in self._waiting.values())
        self._expiry_at = min(ends, default=math.inf)
