"""The scheduler's whole state and what may happen to it. Pure: time and randomness come in as arguments.

Every input is a method; what must be said to clients is returned by `dispatch`. Counters move in the same call
that decides, so two requests never see the same free slot.
"""

from dataclasses import dataclass

from scheduler.core import refusals
from scheduler.core.policy import Choice, Rng, place
from scheduler.core.prefix import PrefixMirror
from scheduler.core.queue import ModelQueue, QueueOutcome, Ticket
from scheduler.core.replica import Load, Replica
from scheduler.messages import Announce, OpenPlacement, PlaceRefused
from scheduler.wire import Placement, PlaceRequest, QueueView, Released
from workers.wire import Heartbeat, ReplicaState

MAX_WAITING = 4096
"""Requests that may wait for one model."""
MAX_BLOCKS = 4096
MAX_EXCLUDED = 16
MAX_DEADLINE_S = 600.0
MAX_BYPASSES = 32
"""Tickets looked at behind one that only its own excluded replicas hold back."""


@dataclass
class Open:
    """A placement that is not over."""

    client: str
    tenant_id: str
    model: str
    replica_id: str
    boot_id: str
    prompt_tokens: int
    hit_tokens: int
    produced: int
    prefilled: bool
    placed_at: float

    @property
    def uncached(self) -> int:
        """Prompt tokens the replica has to prefill for it."""
        return max(0, self.prompt_tokens - self.hit_tokens)


@dataclass(frozen=True)
class Placed:
    """Tell `client` where its request runs."""

    client: str
    placement: Placement


@dataclass(frozen=True)
class Turned:
    """Tell `client` that its request is refused."""

    client: str
    model: str
    refusal: PlaceRefused


Decision = Placed | Turned
PlacementKey = tuple[str, str, str]
"""Client, request id, replica id: a request may briefly have two placements, never two on one replica."""


class Board:
    """Replicas, queues and open placements of one scheduler incarnation."""

    def __init__(
        self, epoch: str, now: float, *, grace_s: float = 3.0, max_waiting: int = MAX_WAITING
    ) -> None:
        """`grace_s` from `now` on nobody is refused for want of replicas: agents may not have reported yet."""
        self.epoch = epoch
        self.replicas: dict[str, Replica] = {}
        self.queues: dict[str, ModelQueue] = {}
        self.open: dict[PlacementKey, Open] = {}
        self._loads: dict[str, Load] = {}
        self._grace_ends = now + grace_s
        self._max_waiting = max_waiting
        self._seq = 0
        self._dirty: set[str] = set()
        self._decisions: list[Decision] = []

    # What agents say

    def heartbeat(self, beat: Heartbeat, now: float) -> bool:
        """Take an agent's whole view; True when replicas came, went or changed state."""
        changed = False
        for status in beat.replicas:
            known = self.replicas.get(status.replica_id)
            if known is None:
                load = self._loads.setdefault(status.replica_id, Load())
                known = Replica(status, beat.agent_id, now, load, PrefixMirror(0))
                self.replicas[status.replica_id] = known
                changed = True
            changed |= (known.status.state, known.status.boot_id) != (status.state, status.boot_id)
            if known.status.boot_id != status.boot_id:
                known.prefix.clear()
            known.status, known.agent_id, known.heard_at, known.hold = status, beat.agent_id, now, None
            known.beats += 1
            known.prefix.room_tokens = known.kv_capacity
            self._dirty.add(status.model)
        listed = {status.replica_id for status in beat.replicas}
        for replica_id, replica in list(self.replicas.items()):
            if replica.agent_id == beat.agent_id and replica_id not in listed:
                self._forget(replica_id)
                changed = True
        return changed

    def forget_silent(self, now: float, after_s: float) -> bool:
        """Drop replicas whose agent has not been heard of for `after_s`; True when there were any."""
        gone = [name for name, replica in self.replicas.items() if now - replica.heard_at > after_s]
        for replica_id in gone:
            self._forget(replica_id)
        return bool(gone)

    def placements_on(self, replica_id: str) -> int:
        """Open placements on a replica."""
        load = self._loads.get(replica_id)
        return load.running if load is not None else 0

    def expect(self, replica_id: str, state: ReplicaState) -> None:
        """Believe that a replica is in `state` until its next heartbeat: a command has just been sent."""
        if replica := self.replicas.get(replica_id):
            replica.hold = state

    # What clients say

    def submit(self, client: str, request: PlaceRequest, now: float, age_s: float = 0.0) -> None:
        """Queue a request; `dispatch` answers. One that already waits under the same id is left alone."""
        self._seq += 1
        request = bounded(request)
        queue = self.queues.setdefault(request.model, ModelQueue())
        ticket = Ticket(client, request, now - max(0.0, age_s), now + request.deadline_s, self._seq)
        if ticket.key in queue:
            return
        self._dirty.add(request.model)
        if refusal := refusals.crowded(request, queue, self._of(request.model), self._max_waiting):
            self._decisions.append(Turned(client, request.model, refusal))
            return
        queue.add(ticket)

    def cancel(self, client: str, request_id: str) -> None:
        """The caller is gone: drop its ticket. A placement that crosses this is released by the client."""
        for queue in self.queues.values():
            queue.remove((client, request_id), QueueOutcome.CANCELLED)

    def prefill_done(self, client: str, request_id: str, replica_id: str) -> None:
        """The first token came: its prompt no longer waits for prefill."""
        entry = self.open.get((client, request_id, replica_id))
        if entry is not None and not entry.prefilled:
            entry.prefilled = True
            self._loads[replica_id].unprefilled -= entry.uncached

    def progress(self, client: str, request_id: str, replica_id: str, produced: int) -> None:
        """So many output tokens so far; counts never go back."""
        entry = self.open.get((client, request_id, replica_id))
        if entry is not None and produced > entry.produced:
            self._loads[replica_id].kv_tokens += produced - entry.produced
            entry.produced = produced

    def release(self, client: str, released: Released) -> Open | None:
        """A placement is over; None when it is not known (any more), which is no error."""
        entry = self._close((client, released.request_id, released.replica_id))
        replica = self.replicas.get(released.replica_id)
        if entry is not None and released.failed and replica is not None:
            replica.prefix.clear()
        return entry

    def announce(self, client: str, announced: Announce, now: float) -> None:
        """A client (re)connected and says all it holds and waits for: that is now the truth about it."""
        self.drop_waiting(client)
        self.drop_placements(client)
        for held in announced.placements:
            self._open(client, _opened(client, held, now), held.request_id)
        for queued in announced.queued:
            self.submit(client, queued.request, now, queued.age_s)

    def drop_waiting(self, client: str) -> int:
        """The client's connection is gone: nobody waits for these answers. Returns how many there were."""
        return sum(len(queue.remove_client(client)) for queue in self.queues.values())

    def drop_placements(self, client: str) -> int:
        """The client is dead: its placements no longer load anything. Returns how many there were."""
        keys = [key for key in self.open if key[0] == client]
        for key in keys:
            self._close(key)
        return len(keys)

    # What is decided

    def dispatch(self, now: float, rng: Rng) -> list[Decision]:
        """Expire what is overdue, place what can be placed; the answers in the order they were decided."""
        for model, queue in self.queues.items():
            if expired := queue.expire(now):
                self._expire(model, queue, expired)
        for model in sorted(self._dirty):
            self._serve(model, now, rng)
        self._dirty.clear()
        for model in [model for model, queue in self.queues.items() if not queue]:
            del self.queues[model]
        decisions, self._decisions = self._decisions, []
        return decisions

    def tick(self) -> None:
        """Look at every queue in the next dispatch: time alone may have changed what is possible."""
        self._dirty.update(self.queues)

    def queue_views(self, now: float) -> list[QueueView]:
        """Every model that is waited for or running."""
        in_flight: dict[str, int] = {}
        for entry in self.open.values():
            in_flight[entry.model] = in_flight.get(entry.model, 0) + 1
        views = []
        for model in sorted(self.queues.keys() | in_flight.keys()):
            queue = self.queues.get(model)
            oldest = queue.oldest if queue else None
            age_s = now - oldest.enqueued_at if oldest else 0.0
            views.append(QueueView(model, len(queue) if queue else 0, age_s, in_flight.get(model, 0)))
        return views

    def _serve(self, model: str, now: float, rng: Rng) -> None:
        queue = self.queues.get(model)
        if not queue:
            return
        snapshot = self._of(model)
        bypassed = 0
        for ticket in list(queue):
            verdict = place(ticket.request, snapshot, now, rng)
            if isinstance(verdict, Choice):
                queue.remove(ticket.key, QueueOutcome.PLACED)
                self._decisions.append(self._place(ticket, verdict, now))
            elif not verdict.reason.worth_waiting and now >= self._grace_ends:
                queue.remove(ticket.key, QueueOutcome.HOPELESS)
                refusal = refusals.hopeless(ticket.request, verdict.reason, snapshot)
                self._decisions.append(Turned(ticket.client, model, refusal))
            elif ticket.request.exclude and bypassed < MAX_BYPASSES:
                bypassed += 1
            else:
                return

    def _expire(self, model: str, queue: ModelQueue, expired: list[tuple[Ticket, int]]) -> None:
        running = dict.fromkeys(queue.tenant_ids, 0)
        for entry in self.open.values():
            if entry.model == model:
                running[entry.tenant_id] = running.get(entry.tenant_id, 0) + 1
        replicas = self._of(model)
        for ticket, position in expired:
            tenant_id = ticket.request.tenant_id
            others_wait = len(queue) > queue.waiting_of(tenant_id)
            over_share = others_wait and refusals.over_share(running, tenant_id)
            refusal = refusals.overdue(ticket, position, over_share, replicas)
            self._decisions.append(Turned(ticket.client, model, refusal))

    def _of(self, model: str) -> list[Replica]:
        return [replica for replica in self.replicas.values() if replica.status.model == model]

    def _place(self, ticket: Ticket, choice: Choice, now: float) -> Placed:
        request, status = ticket.request, choice.replica.status
        entry = Open(
            ticket.client,
            request.tenant_id,
            request.model,
            status.replica_id,
            status.boot_id,
            request.prompt_tokens,
            choice.hit_tokens,
            0,
            False,
            now,
        )
        self._open(ticket.client, entry, request.request_id)
        choice.replica.prefix.remember(request.blocks, request.prompt_tokens)
        placement = Placement(
            request.request_id,
            self.epoch,
            status.replica_id,
            status.url,
            status.model,
            status.boot_id,
            status.simulated,
            max(0.0, now - ticket.enqueued_at),
            choice.ttft_s,
            choice.hit_tokens,
        )
        return Placed(ticket.client, placement)

    def _open(self, client: str, entry: Open, request_id: str) -> None:
        key = (client, request_id, entry.replica_id)
        self._close(key)
        self.open[key] = entry
        load = self._loads.setdefault(entry.replica_id, Load())
        load.running += 1
        load.kv_tokens += entry.uncached + entry.produced
        if not entry.prefilled:
            load.unprefilled += entry.uncached

    def _close(self, key: PlacementKey) -> Open | None:
        entry = self.open.pop(key, None)
        if entry is None:
            return None
        load = self._loads[entry.replica_id]
        load.running -= 1
        load.kv_tokens -= entry.uncached + entry.produced
        if not entry.prefilled:
            load.unprefilled -= entry.uncached
        if load.running == 0 and entry.replica_id not in self.replicas:
            del self._loads[entry.replica_id]
        self._dirty.add(entry.model)
        return entry

    def _forget(self, replica_id: str) -> None:
        replica = self.replicas.pop(replica_id)
        if replica.load.running == 0:
            self._loads.pop(replica_id, None)
        self._dirty.add(replica.status.model)


def bounded(request: PlaceRequest) -> PlaceRequest:
    """`request` with every count in range, whatever the peer sent."""
    deadline_s = request.deadline_s if 0.0 < request.deadline_s <= MAX_DEADLINE_S else 0.0
    if request.deadline_s > MAX_DEADLINE_S:
        deadline_s = MAX_DEADLINE_S
    request.prompt_tokens = max(0, request.prompt_tokens)
    request.output_tokens = max(0, request.output_tokens)
    request.blocks = request.blocks[:MAX_BLOCKS]
    request.exclude = request.exclude[:MAX_EXCLUDED]
    request.deadline_s = deadline_s
    return request


def _opened(client: str, held: OpenPlacement, now: float) -> Open:
    return Open(
        client,
        held.tenant_id,
        held.model,
        held.replica_id,
        held.boot_id,
        max(0, held.prompt_tokens),
        max(0, held.hit_tokens),
        max(0, held.produced),
        held.prefilled,
        now - max(0.0, held.age_s),
    )
