"""The state of the scheduler and all events that change it. Pure: time and randomness are arguments.

Every event is a method; `dispatch` returns the answers for clients. Load counters change in the call that decides, so
two requests never see the same free slot.
"""

import math
from array import array
from collections.abc import Mapping, Sequence

from scheduler.core import refusals
from scheduler.core.canary import Canary
from scheduler.core.decisions import Assignment, Decision, Placed, Rejection
from scheduler.core.fleet import Fleet
from scheduler.core.flow import QueuedRequest, QueueOutcome
from scheduler.core.model_queue import ModelQueue
from scheduler.core.orphans import OrphanedPlacements, PlacementKey
from scheduler.core.placement import ActivePlacement
from scheduler.core.policy import Chooser, Reason, Rng, place
from scheduler.core.predict import Accuracy
from scheduler.core.queue_view import queue_view
from scheduler.core.rules import BANDS, SchedulerConfig, band_index
from scheduler.core.waking import WakeOrder, Waker, rests
from scheduler.messages import Announce, AnnouncedPlacement, TenantCounter
from scheduler.wire import BoundTo, Placement, PlaceRequest, QueueView, Released
from workers.wire import Heartbeat, ReplicaState

MAX_BLOCKS = 4096
"""Prefix blocks that are kept of one request."""
MAX_EXCLUDED = 16
"""Excluded replicas that are kept of one request."""
MAX_DEADLINE_S = 600.0
"""Longest deadline of a request."""
WEIGHTS = (0.01, 100.0)
"""Smallest and largest weight of a tenant."""
MAX_ANNOUNCED_COUNTERS = 16_384
"""Counters that are taken from one announcement."""
MAX_MODEL_QUEUES = 1024
"""Models that may have a queue at once; clients can invent any number of model names."""
MAX_ACTIVE = 262_144
"""Active placements up to which announced ones are added; placements decided here are bounded by the replicas'
slots."""
RESTORED_COUNTERS_S = 60.0
"""Seconds for which restored counters of a model without replicas are kept; longer than requests wait after a
restart."""
ORPHAN_TTL_S = 600.0
"""Seconds for which orphaned placements are kept."""


class SchedulerState:
    """Replicas, queues and active placements of one scheduler incarnation. Times are monotonic seconds."""

    def __init__(
        self,
        epoch: str,
        now: float,
        *,
        grace_s: float = 3.0,
        config: SchedulerConfig | None = None,
        choose: Chooser = place,
        waker: Waker | None = None,
    ) -> None:
        """For `grace_s` seconds from `now` no request is refused for want of replicas: agents may not have reported
        yet. The simulator compares other ways to `choose` a replica. Without a `waker` requests wake no replica."""
        self.epoch = epoch
        self.config = config or SchedulerConfig()
        self.fleet = Fleet(self.config.policy, choose, waker)
        self.queues: dict[str, ModelQueue] = {}
        self.active: dict[PlacementKey, ActivePlacement] = {}
        self.orphans = OrphanedPlacements()
        self._announced: dict[str, set[PlacementKey]] = {}
        """By client: the placements that it has named so far, while its announcement has more of them."""
        self._restored_until: dict[str, float] = {}
        """By model: until when restored counters are kept."""
        self.grace_ends = now + grace_s
        if waker is not None:
            waker.begins_at = self.grace_ends
        self._seq = 0
        self._dirty: set[str] = set()
        self.unfinished = False
        """Whether the last dispatch left work to the next, which should follow at once."""
        self._decisions: list[Decision] = []
        """Refusals on arrival, returned by the next dispatch."""

    # Events from agents

    def heartbeat(self, heartbeat: Heartbeat, now: float) -> bool:
        """Apply an agent's heartbeat; returns whether replicas came, went or changed state."""
        changed, models = self.fleet.heartbeat(heartbeat, now)
        self._mark_dirty(models, changed)
        return changed

    def forget_silent(self, now: float, after_s: float) -> bool:
        """Drop replicas without a heartbeat for `after_s` seconds; returns whether there were any.

        Queues of models without replicas, queued requests and placements are dropped too. Restored counters are kept
        for RESTORED_COUNTERS_S.
        """
        models = self.fleet.forget_silent(now, after_s)
        if models and self.fleet.waker is not None:
            self.fleet.waker.forget(replica.engine.replica_id for replica in self.fleet.replicas.values())
        self._mark_dirty(models, True)
        self.orphans.expire(now - ORPHAN_TTL_S)
        self._restored_until = {model: until for model, until in self._restored_until.items() if until > now}
        if now >= self.grace_ends:
            for model in [model for model, model_queue in self.queues.items() if model_queue.queue.idle]:
                if model not in self._restored_until and not self.fleet.replicas_of(model):
                    del self.queues[model]
        return bool(models)

    def _mark_dirty(self, models: set[str], changed: bool) -> None:
        self._dirty |= models
        if changed:
            for model in models & self.queues.keys():
                self.queues[model].on_pool_change()

    def active_on(self, replica_id: str) -> int:
        """Number of active placements on a replica."""
        return self.fleet.running_on(replica_id)

    def expect_state(self, replica_id: str, state: ReplicaState) -> None:
        """Assume that a replica is in `state` until its next heartbeat, because a command was sent."""
        self.fleet.expect_state(replica_id, state)
        self._mark_dirty({replica.status.model for replica in self.fleet.targets_of(replica_id)}, True)

    def set_canaries(self, canaries: Mapping[str, Canary], now: float) -> None:
        """Send a share of the requests of these models to replicas of a new version from now on."""
        self._mark_dirty(self.fleet.set_canaries(canaries, now), True)

    # Events from clients

    def submit(
        self, client: str, request: PlaceRequest, now: float, age_s: float = 0.0, *, admitted: bool = False
    ) -> None:
        """Queue a request or refuse it; the answer follows from `dispatch`. A request that is queued already is
        ignored.

        `age_s` is the time that the request has waited before. With `admitted`, its wait is not judged again, because
        an earlier scheduler admitted it. The same holds for a request that has failed on a replica. The deadline of a
        wake holds while no replica where it may run is ready and one may come, and for an admitted request whose other
        deadline has passed: it was held for a wake.
        """
        self._seq += 1
        request = clamped(request)
        if not self._may_queue(request.model):
            unknown = refusals.hopeless(request, Reason.UNKNOWN_MODEL, refusals.Standing(0, 0, None))
            self._decisions.append(Rejection(client, request.model, unknown))
            return
        # A request that has failed on a replica may go on on any other.
        request.track = (
            ""
            if request.exclude
            else self.fleet.track_of(request.model, request.tenant_id, request.request_id)
        )
        model_queue = self._queue_of(request.model)
        enqueued_at = now - max(0.0, age_s)
        deadline_s, coming = request.deadline_s, model_queue.pool.coming(request, now)
        if coming.awaited or (admitted and not deadline_s):
            deadline_s = max(deadline_s, request.wake_deadline_s)
        admitted = admitted or bool(request.exclude)
        queued = QueuedRequest(client, request, enqueued_at, now + deadline_s, self._seq, admitted)
        if queued.key in model_queue.queue:
            return
        self._dirty.add(request.model)
        if coming.is_cold and self.fleet.waker is not None:
            self.fleet.waker.want(request)  # even if it is refused: the next one then finds a replica
        if refusal := model_queue.submit(queued, now):
            self._decisions.append(Rejection(client, request.model, refusal))

    def cancel(self, client: str, request_id: str) -> None:
        """Remove a queued request. A placement that crosses this message is released by the client."""
        for model, model_queue in self.queues.items():
            if model_queue.queue.remove((client, request_id), QueueOutcome.CANCELLED) is not None:
                self._dirty.add(model)  # it may have blocked others

    def prefill_done(
        self, client: str, request_id: str, replica_id: str, now: float
    ) -> ActivePlacement | None:
        """Note the first token of a placement. None when the placement is not known or the first token was noted
        before."""
        entry = self.active.get((client, request_id, replica_id))
        if entry is None or entry.prefilled:
            return None
        self.fleet.on_prefill(entry, now)
        return entry

    def progress(self, client: str, request_id: str, replica_id: str, produced: int, now: float) -> None:
        """Note the output tokens produced so far; counts never decrease.

        An answer that the engine sends in one piece has no first token that could be noted before: its predicted
        tokens end its prefill.
        """
        entry = self.active.get((client, request_id, replica_id))
        if entry is not None:
            if produced > 0:
                self.fleet.assume_prefilled(entry, now)
            self.fleet.on_progress(entry, produced, now)
            self._queue_of(entry.model).queue.on_progress(entry)

    def release(self, client: str, released: Released, now: float) -> ActivePlacement | None:
        """Close a placement. None when it is not known, which is no error."""
        return self._deactivate((client, released.request_id, released.replica_id), released, now)

    def announce(self, client: str, announced: Announce, now: float) -> None:
        """Apply a client's announcement after a (re)connection: it replaces what was known of the client.

        Counters of earlier schedulers are restored before anything is charged. Known placements continue unchanged:
        they are not charged again, and their cached prefixes are kept.
        """
        if not announced.more:
            self.drop_waiting(client)
            self._announced[client] = set()
        if (named := self._announced.get(client)) is not None:
            named.update((client, each.request_id, each.replica_id) for each in announced.placements)
            if not announced.placements_follow or len(named) > MAX_ACTIVE:
                del self._announced[client]
                for key in [key for key in self.active if key[0] == client and key not in named]:
                    self._deactivate(key, None, now)
        for counter in announced.counters[:MAX_ANNOUNCED_COUNTERS]:
            if 0.0 < counter.service < math.inf and self._may_queue(counter.model):
                self._queue_of(counter.model).queue.restore(counter)
                self._restored_until[counter.model] = now + RESTORED_COUNTERS_S
        for each in announced.placements:
            if self._may_queue(each.model) and len(self.active) < MAX_ACTIVE:
                self._restore(client, each, now)
        for queued in announced.queued:
            self.submit(client, queued.request, now, queued.age_s, admitted=True)

    def _restore(self, client: str, held: AnnouncedPlacement, now: float) -> None:
        """Restore an announced placement: one that is active, an orphaned one, or one of an earlier scheduler."""
        key = (client, held.request_id, held.replica_id)
        entry = self.active.get(key)
        if entry is not None and (entry.boot_id, entry.model, entry.rank) == (
            held.boot_id,
            held.model,
            held.rank,
        ):
            if held.prefilled:
                self.fleet.assume_prefilled(entry, now)
            self.progress(*key, held.produced, now)
            return
        entry = _from_announced(client, held, now)
        if orphan := self.orphans.claim(key, held.boot_id, held.model):
            entry.charged = orphan.charged
            entry.blocks, entry.block_tokens = orphan.blocks, orphan.block_tokens
        self._activate(entry, held.request_id, now, counted=held.epoch not in ("", self.epoch))

    def drop_waiting(self, client: str) -> int:
        """Remove the queued requests of a client whose connection is lost; returns their number."""
        dropped = {
            model: len(model_queue.queue.remove_client(client)) for model, model_queue in self.queues.items()
        }
        self._dirty.update(model for model, count in dropped.items() if count)
        return sum(dropped.values())

    def drop_placements(self, client: str, now: float) -> int:
        """Close the placements of a client that did not return; returns their number."""
        self._announced.pop(client, None)
        keys = [key for key in self.active if key[0] == client]
        for key in keys:
            if entry := self._deactivate(key, None, now):
                self.orphans.add(key, entry, now)
        return len(keys)

    # Decisions

    def dispatch(self, now: float, rng: Rng) -> list[Decision]:
        """Expire, place and refuse requests; returns the answers in the order of the decisions.

        The work is bounded: when `unfinished` is set afterwards, the caller should dispatch again at once.
        """
        grace = now < self.grace_ends
        decisions, self._decisions = self._decisions, []
        for model_queue in self.queues.values():
            decisions += model_queue.expire(now)
        for model in sorted(self._dirty & self.queues.keys()):
            for decision in self.queues[model].serve(now, rng, grace=grace):
                # Applied before the queue decides again: its next decision depends on the load.
                decisions.append(
                    self._placed(decision, now) if isinstance(decision, Assignment) else decision
                )
        self._dirty = {model for model, model_queue in self.queues.items() if model_queue.unfinished}
        self.unfinished = bool(self._dirty)
        for model in [model for model, model_queue in self.queues.items() if model_queue.disposable]:
            del self.queues[model]
        return decisions

    def take_wakes(self, now: float) -> list[WakeOrder]:
        """The commands that make replicas serve for requests that were blocked for want of one since the last call."""
        fleet = self.fleet
        if fleet.waker is None:
            return []
        return fleet.waker.take_orders(fleet.replicas_of, fleet.replicas.values(), now)

    def wakes(self, model: str) -> bool:
        """Whether a request for `model` would wake a replica."""
        return self.fleet.wakes(model) and any(rests(each) for each in self.fleet.replicas_of(model))

    def on_wake_result(self, replica_id: str, ok: bool, why: str, now: float) -> None:
        """Take the result of a command of `take_wakes`."""
        if self.fleet.waker is not None:
            self.fleet.waker.on_result(replica_id, ok, why, now)

    def on_turns(self, turns: Mapping[str, float]) -> None:
        """Take when models that wait for GPUs which others use serve, in monotonic seconds, and review their queues."""
        if self.fleet.waker is not None:
            self.fleet.waker.turns = turns
            self._mark_dirty(set(turns), True)

    def tick(self) -> None:
        """Serve every queue in the next dispatch: the passage of time alone may allow placements."""
        self._dirty.update(self.queues)

    def next_deadline(self) -> float | None:
        """The earliest deadline of all queued requests; None when none is queued."""
        ends = [
            end
            for model_queue in self.queues.values()
            if (end := model_queue.queue.next_deadline()) is not None
        ]
        return min(ends, default=None)

    # Views

    @property
    def waiting(self) -> int:
        """Number of queued requests of all models."""
        return sum(len(model_queue.queue) for model_queue in self.queues.values())

    def queue_views(self, now: float) -> list[QueueView]:
        """A view of every model with queued or running requests."""
        views = [queue_view(model, self.queues[model].queue, now) for model in sorted(self.queues)]
        return [view for view in views if view is not None]

    def waiting_at(self) -> dict[str, Mapping[BoundTo, int]]:
        """By model: the queued requests that are bound to regions or classes of GPU, by what they name."""
        return {model: each.queue.waiting_at for model, each in self.queues.items() if each.queue.waiting_at}

    def changed_counters(self) -> list[TenantCounter]:
        """The counters that changed since the last call; clients keep them for the next scheduler."""
        return [
            counter
            for model in sorted(self.queues)
            for counter in self.queues[model].queue.take_changed(model)
        ]

    def counters(self) -> list[TenantCounter]:
        """All counters, and the floors of the bands."""
        return [
            counter for model in sorted(self.queues) for counter in self.queues[model].queue.counters(model)
        ]

    def accuracy(self) -> dict[tuple[str, str], Accuracy]:
        """Accuracy of predictions by model and kind: wait, ttft, itl."""
        waits = {(model, "wait"): model_queue.admission.waits for model, model_queue in self.queues.items()}
        reports = self.fleet.reports.items()
        return (
            waits
            | {(model, "ttft"): report.ttft for model, report in reports}
            | {(model, "itl"): report.itl for model, report in reports}
        )

    # Internals

    def _may_queue(self, model: str) -> bool:
        """Whether a model may have a queue: it has one, there is room for another, or a host serves it."""
        return (
            model in self.queues or len(self.queues) < MAX_MODEL_QUEUES or bool(self.fleet.replicas_of(model))
        )

    def _queue_of(self, model: str) -> ModelQueue:
        model_queue = self.queues.get(model)
        if model_queue is None:
            model_queue = self.queues[model] = ModelQueue(model, self.fleet, self.config)
        return model_queue

    def _placed(self, assignment: Assignment, now: float) -> Placed:
        """Activate a placement for an assignment."""
        queued, choice = assignment
        request, status, rank = queued.request, choice.replica.engine, choice.replica.rank
        entry = ActivePlacement(
            queued.client,
            request.tenant_id,
            request.model,
            status.replica_id,
            status.boot_id,
            request.prompt_tokens,
            choice.hit_tokens,
            request.output_tokens,
            produced=0,
            prefilled=False,
            placed_at=now,
            predicted_ttft_s=choice.ttft_s,
            predicted_itl_s=choice.itl_s,
            queued_s=now - queued.enqueued_at,
            tier=request.tier,
            weight=request.weight,
            blocks=request.blocks,
            block_tokens=request.block_tokens,
            rank=rank,
        )
        service = self._activate(entry, request.request_id, now, retried=bool(request.exclude))
        band = band_index(request.tier)
        placement = Placement(
            request.request_id,
            self.epoch,
            status.replica_id,
            status.url,
            status.model,
            status.boot_id,
            status.simulated,
            max(0.0, now - queued.enqueued_at),
            choice.ttft_s,
            choice.hit_tokens,
            choice.itl_s,
            service,
            status.stream_interval,
            band if status.capacity.by_priority else None,
            rank,
            status.region,
            status.gpu,
            counts_ids=status.counts_ids,
        )
        return Placed(queued.client, placement, BANDS[band])

    def _activate(
        self,
        entry: ActivePlacement,
        request_id: str,
        now: float,
        *,
        counted: bool = False,
        retried: bool = False,
    ) -> float:
        """Add a placement to its replica's load and charge its tenant; returns the tenant's counter."""
        key = (entry.client, request_id, entry.replica_id)
        self._deactivate(key, None, now)
        self.active[key] = entry
        self.fleet.on_open(entry, now)
        return self._queue_of(entry.model).queue.on_open(entry, counted=counted, retried=retried)

    def _deactivate(self, key: PlacementKey, released: Released | None, now: float) -> ActivePlacement | None:
        entry = self.active.pop(key, None)
        if entry is not None:
            self.fleet.on_close(entry, released, now)
            self._queue_of(entry.model).queue.on_close(entry, released)
            self._dirty.add(entry.model)
        return entry


def clamped(request: PlaceRequest) -> PlaceRequest:
    """`request` with every count in range and its blocks packed."""
    request.prompt_tokens = max(0, request.prompt_tokens)
    request.output_tokens = max(0, request.output_tokens)
    request.block_tokens = max(0, request.block_tokens)
    request.blocks = packed(request.blocks)
    request.exclude = request.exclude[:MAX_EXCLUDED]
    request.regions, request.gpus = request.regions[:MAX_EXCLUDED], request.gpus[:MAX_EXCLUDED]
    request.deadline_s = min(request.deadline_s, MAX_DEADLINE_S) if request.deadline_s > 0.0 else 0.0
    request.wake_deadline_s = (
        min(request.wake_deadline_s, MAX_DEADLINE_S) if request.wake_deadline_s > 0.0 else 0.0
    )
    request.weight = min(max(request.weight, WEIGHTS[0]), WEIGHTS[1]) if request.weight > 0 else 1.0
    return request


def packed(blocks: Sequence[int]) -> Sequence[int]:
    """Block hashes as an array: a fifth of a list's memory, and no work for the garbage collector.

    Empty when one of them is not a 64-bit hash.
    """
    try:
        return array("Q", blocks[:MAX_BLOCKS])
    except OverflowError:
        return ()


def _from_announced(client: str, held: AnnouncedPlacement, now: float) -> ActivePlacement:
    return ActivePlacement(
        client,
        held.tenant_id,
        held.model,
        held.replica_id,
        held.boot_id,
        max(0, held.prompt_tokens),
        max(0, held.hit_tokens),
        max(0, held.output_tokens),
        produced=max(0, held.produced),
        prefilled=held.prefilled,
        placed_at=now - max(0.0, held.age_s),
        tier=held.tier,
        weight=min(max(held.weight, WEIGHTS[0]), WEIGHTS[1]) if held.weight > 0 else 1.0,
        rank=held.rank,
    )
