"""The scheduler's whole state and what may happen to it. Pure: time and randomness come in as arguments.

Every input is a method; what must be said to clients is returned by `dispatch`. Counters move in the same call
that decides, so two requests never see the same free slot.
"""

import math
from array import array
from collections.abc import Sequence

from scheduler.core import refusals
from scheduler.core.decisions import Assigned, Decision, Placed, Turned
from scheduler.core.fair_queue import band_index
from scheduler.core.fleet import Fleet
from scheduler.core.flow import QueuedRequest, QueueOutcome
from scheduler.core.lapsed import Lapsed, PlacementKey
from scheduler.core.model_queue import ModelQueue
from scheduler.core.placements import Open
from scheduler.core.policy import Reason, Rng
from scheduler.core.predict import Accuracy
from scheduler.core.queue_view import queue_view
from scheduler.core.rules import BANDS, SchedulerConfig
from scheduler.messages import Announce, AnnouncedPlacement, TenantCounter
from scheduler.wire import Placement, PlaceRequest, QueueView, Released
from workers.wire import Heartbeat, ReplicaState

MAX_BLOCKS = 4096
MAX_EXCLUDED = 16
MAX_DEADLINE_S = 600.0
WEIGHTS = (0.01, 100.0)
"""Least and most a tenant may weigh."""
MAX_ANNOUNCED_COUNTERS = 16_384
MAX_DESKS = 1024
"""Models that may have a queue at once: names that no host serves are made up as easily as not."""
MAX_OPEN = 262_144
"""Open placements that announcements may bring the total to; those decided here are bounded by the replicas' slots."""
ADOPTED_S = 60.0
"""How long announced counters wait for an agent of their model: longer after a restart than any request is made to."""
LAPSED_S = 600.0
"""How long it is remembered what a client held that seemed dead."""


class Board:
    """Replicas, queues and open placements of one scheduler incarnation."""

    def __init__(
        self, epoch: str, now: float, *, grace_s: float = 3.0, config: SchedulerConfig | None = None
    ) -> None:
        """`grace_s` from `now` on nobody is refused for want of replicas: agents may not have reported yet."""
        self.epoch = epoch
        self.config = config or SchedulerConfig()
        self.fleet = Fleet(self.config.policy)
        self.desks: dict[str, ModelQueue] = {}
        self.open: dict[PlacementKey, Open] = {}
        self.lapsed = Lapsed()
        self._adopted: dict[str, float] = {}
        """Until when the counters of models are kept that clients have announced."""
        self._grace_ends = now + grace_s
        self._seq = 0
        self._dirty: set[str] = set()
        self.unfinished = False
        """The last dispatch has put off some work so as not to take long: call it again soon."""
        self._decisions: list[Decision] = []
        """Refusals on arrival, for the next dispatch to return."""

    # What agents say

    def heartbeat(self, beat: Heartbeat, now: float) -> bool:
        """Take an agent's whole view; True when replicas came, went or changed state."""
        changed, models = self.fleet.heartbeat(beat, now)
        self._look_again(models, changed)
        return changed

    def forget_silent(self, now: float, after_s: float) -> bool:
        """Drop replicas whose agent has not been heard of for `after_s`; True when there were any.

        Models that nobody serves, waits for or runs are forgotten too: were they to come back, all begin anew. Only
        counters that a client has announced wait ADOPTED_S for an agent.
        """
        models = self.fleet.forget_silent(now, after_s)
        self._look_again(models, True)
        self.lapsed.forget(now - LAPSED_S)
        self._adopted = {model: until for model, until in self._adopted.items() if until > now}
        if now >= self._grace_ends:
            for model in [model for model, model_queue in self.desks.items() if model_queue.queue.idle]:
                if model not in self._adopted and not self.fleet.of(model):
                    del self.desks[model]
        return bool(models)

    def _look_again(self, models: set[str], changed: bool) -> None:
        self._dirty |= models
        if changed:
            for model in models & self.desks.keys():
                self.desks[model].on_pool_change()

    def placements_on(self, replica_id: str) -> int:
        """Open placements on a replica."""
        return self.fleet.running_on(replica_id)

    def expect(self, replica_id: str, state: ReplicaState) -> None:
        """Believe that a replica is in `state` until its next heartbeat: a command has just been sent."""
        self.fleet.expect(replica_id, state)
        if replica := self.fleet.replicas.get(replica_id):
            self._look_again({replica.status.model}, True)

    # What clients say

    def submit(
        self, client: str, request: PlaceRequest, now: float, age_s: float = 0.0, *, admitted: bool = False
    ) -> None:
        """Queue a request or refuse it; `dispatch` answers. One that already waits under the same id is left alone.

        `admitted`: an earlier scheduler has let it in; its wait is not judged again. Nor is that of one whose replica
        has failed it: it has been let in, and paid for, before.
        """
        self._seq += 1
        request = bounded(request)
        if not self._may_have_desk(request.model):
            unknown = refusals.hopeless(request, Reason.UNKNOWN_MODEL, refusals.Standing(0, 0, None))
            self._decisions.append(Turned(client, request.model, unknown))
            return
        model_queue = self._desk(request.model)
        admitted = admitted or bool(request.exclude)
        enqueued_at = now - max(0.0, age_s)
        queued = QueuedRequest(client, request, enqueued_at, now + request.deadline_s, self._seq, admitted)
        if queued.key in model_queue.queue:
            return
        self._dirty.add(request.model)
        if refusal := model_queue.submit(queued, now):
            self._decisions.append(Turned(client, request.model, refusal))

    def cancel(self, client: str, request_id: str) -> None:
        """The caller is gone: drop its ticket. A placement that crosses this is released by the client."""
        for model, model_queue in self.desks.items():
            if model_queue.queue.remove((client, request_id), QueueOutcome.CANCELLED) is not None:
                self._dirty.add(model)  # it may have been in the way of the next

    def prefill_done(self, client: str, request_id: str, replica_id: str, now: float) -> Open | None:
        """The first token came: its prompt no longer waits for prefill. None when that is no news."""
        entry = self.open.get((client, request_id, replica_id))
        if entry is None or entry.prefilled:
            return None
        self.fleet.prefilled(entry, now)
        return entry

    def progress(self, client: str, request_id: str, replica_id: str, produced: int) -> None:
        """So many output tokens so far; counts never go back."""
        entry = self.open.get((client, request_id, replica_id))
        if entry is not None:
            self.fleet.progressed(entry, produced)
            self._desk(entry.model).queue.on_progress(entry)

    def release(self, client: str, released: Released, now: float) -> Open | None:
        """A placement is over; None when it is not known (any more), which is no error."""
        return self._close((client, released.request_id, released.replica_id), released, now)

    def announce(self, client: str, announced: Announce, now: float) -> None:
        """A client (re)connected and says all it holds and waits for: that is now the truth about it.

        Its counters come from earlier schedulers; they are taken over before anything is charged on top of them.
        Placements that are known go on as they are: nobody is charged twice, and no cached prefix is forgotten.
        """
        if not announced.more:
            self.drop_waiting(client)
            held = {(client, each.request_id, each.replica_id) for each in announced.placements}
            for key in [key for key in self.open if key[0] == client and key not in held]:
                self._close(key, None, now)
        for counter in announced.counters[:MAX_ANNOUNCED_COUNTERS]:
            if 0.0 < counter.service < math.inf and self._may_have_desk(counter.model):
                self._desk(counter.model).queue.restore(counter)
                self._adopted[counter.model] = now + ADOPTED_S
        for each in announced.placements:
            if self._may_have_desk(each.model) and len(self.open) < MAX_OPEN:
                self._held(client, each, now)
        for queued in announced.queued:
            self.submit(client, queued.request, now, queued.age_s, admitted=True)

    def _held(self, client: str, held: AnnouncedPlacement, now: float) -> None:
        """A placement that a client says it holds: one that goes on, one that lapsed, or one from before our time."""
        key = (client, held.request_id, held.replica_id)
        entry = self.open.get(key)
        if entry is not None and (entry.boot_id, entry.model) == (held.boot_id, held.model):
            if held.prefilled and not entry.prefilled:
                entry.notes.raw_ttft_s = entry.notes.raw_itl_s = -1.0  # nobody saw when its first token came
                self.fleet.prefilled(entry, now)
                entry.first_token_at = 0.0
            self.progress(*key, held.produced)
            return
        entry = _opened(client, held, now)
        if lapsed := self.lapsed.claim(key, held.boot_id, held.model):
            entry.charged = lapsed.charged
            entry.blocks, entry.block_tokens = lapsed.blocks, lapsed.block_tokens
        self._open(entry, held.request_id, now, counted=held.epoch not in ("", self.epoch))

    def drop_waiting(self, client: str) -> int:
        """The client's connection is gone: nobody waits for these answers. Returns how many there were."""
        dropped = {
            model: len(model_queue.queue.remove_client(client)) for model, model_queue in self.desks.items()
        }
        self._dirty.update(model for model, count in dropped.items() if count)
        return sum(dropped.values())

    def drop_placements(self, client: str, now: float) -> int:
        """The client seems dead: its placements no longer load anything. Returns how many there were."""
        keys = [key for key in self.open if key[0] == client]
        for key in keys:
            if entry := self._close(key, None, now):
                self.lapsed.add(key, entry, now)
        return len(keys)

    # What is decided

    def dispatch(self, now: float, rng: Rng) -> list[Decision]:
        """Expire what is overdue, place what can be placed; the answers in the order they were decided.

        Work is bounded: where `unfinished` is set afterwards, another dispatch is due at once.
        """
        grace = now < self._grace_ends
        decisions, self._decisions = self._decisions, []
        for model_queue in self.desks.values():
            decisions += model_queue.expire(now)
        for model in sorted(self._dirty & self.desks.keys()):
            for decision in self.desks[model].serve(now, rng, grace=grace):
                # Opened here, before the desk decides again: its next decision depends on the load.
                decisions.append(self._placed(decision, now) if isinstance(decision, Assigned) else decision)
        self._dirty = {model for model, model_queue in self.desks.items() if model_queue.unfinished}
        self.unfinished = bool(self._dirty)
        for model in [model for model, model_queue in self.desks.items() if model_queue.disposable]:
            del self.desks[model]
        return decisions

    def tick(self) -> None:
        """Look at every queue in the next dispatch: time alone may have changed what is possible."""
        self._dirty.update(self.desks)

    def next_deadline(self) -> float | None:
        """When `dispatch` has something to say though nothing happens; None when nobody waits."""
        ends = [
            end
            for model_queue in self.desks.values()
            if (end := model_queue.queue.next_deadline()) is not None
        ]
        return min(ends, default=None)

    # What is shown

    @property
    def waiting(self) -> int:
        """Requests that wait, of all models."""
        return sum(len(model_queue.queue) for model_queue in self.desks.values())

    def queue_views(self, now: float) -> list[QueueView]:
        """Every model that is waited for or running."""
        views = [queue_view(model, self.desks[model].queue, now) for model in sorted(self.desks)]
        return [view for view in views if view is not None]

    def changed_counters(self) -> list[TenantCounter]:
        """The counters that moved since the last call, for clients to keep through a restart of this scheduler."""
        return [
            counter for model in sorted(self.desks) for counter in self.desks[model].queue.take_changed(model)
        ]

    def counters(self) -> list[TenantCounter]:
        """Every counter, and what newcomers begin with."""
        return [
            counter for model in sorted(self.desks) for counter in self.desks[model].queue.counters(model)
        ]

    def accuracy(self) -> dict[tuple[str, str], Accuracy]:
        """How good predictions have been, by model and kind: wait, ttft, itl."""
        waits = {(model, "wait"): model_queue.admission.waits for model, model_queue in self.desks.items()}
        reports = self.fleet.reports.items()
        return (
            waits
            | {(model, "ttft"): report.ttft for model, report in reports}
            | {(model, "itl"): report.itl for model, report in reports}
        )

    # Inside

    def _may_have_desk(self, model: str) -> bool:
        """Whether a model may have a queue: there is room for one more name, or a host serves it."""
        return model in self.desks or len(self.desks) < MAX_DESKS or bool(self.fleet.of(model))

    def _desk(self, model: str) -> ModelQueue:
        model_queue = self.desks.get(model)
        if model_queue is None:
            model_queue = self.desks[model] = ModelQueue(model, self.fleet, self.config)
        return model_queue

    def _placed(self, assigned: Assigned, now: float) -> Placed:
        """Open the placement: load its replica and charge its tenant."""
        queued, choice = assigned
        request, status = queued.request, choice.replica.status
        entry = Open(
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
        )
        service = self._open(entry, request.request_id, now)
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
        )
        return Placed(queued.client, placement, BANDS[band_index(request.tier)])

    def _open(self, entry: Open, request_id: str, now: float, *, counted: bool = False) -> float:
        """Load its replica and charge its tenant; the tenant's counter."""
        key = (entry.client, request_id, entry.replica_id)
        self._close(key, None, now)
        self.open[key] = entry
        self.fleet.opened(entry, now)
        return self._desk(entry.model).queue.on_open(entry, counted=counted)

    def _close(self, key: PlacementKey, released: Released | None, now: float) -> Open | None:
        entry = self.open.pop(key, None)
        if entry is not None:
            self.fleet.closed(entry, released, now)
            self._desk(entry.model).queue.on_close(entry, released)
            self._dirty.add(entry.model)
        return entry


def bounded(request: PlaceRequest) -> PlaceRequest:
    """`request` with every count in range, whatever the peer sent, and its blocks packed."""
    request.prompt_tokens = max(0, request.prompt_tokens)
    request.output_tokens = max(0, request.output_tokens)
    request.block_tokens = max(0, request.block_tokens)
    request.blocks = packed(request.blocks)
    request.exclude = request.exclude[:MAX_EXCLUDED]
    request.deadline_s = min(request.deadline_s, MAX_DEADLINE_S) if request.deadline_s > 0.0 else 0.0
    request.weight = min(max(request.weight, WEIGHTS[0]), WEIGHTS[1]) if request.weight > 0 else 1.0
    return request


def packed(blocks: Sequence[int]) -> Sequence[int]:
    """Block hashes in a fifth of a list's memory, which the garbage collector need not walk through while they wait.

    None when one of them is no 64-bit hash: then nothing is known of the prompt.
    """
    try:
        return array("Q", blocks[:MAX_BLOCKS])
    except OverflowError:
        return ()


def _opened(client: str, held: AnnouncedPlacement, now: float) -> Open:
    return Open(
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
    )
