"""Penstock's own scheduler as a routing system: the live SchedulerState, driven by simulated events.

Every API process is a client of it. The placements and waiting requests of each process are kept here as a real
client keeps them, and are announced again after a restart of the scheduler.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from scheduler.announcements import announced_placement
from scheduler.core import policy
from scheduler.core.decisions import Placed
from scheduler.core.pool import Pool
from scheduler.core.rules import AdmissionRules, SchedulerConfig
from scheduler.core.state import SchedulerState
from scheduler.messages import Announce, AnnouncedRequest, TenantCounter
from scheduler.wire import Placement, PlaceRequest, Released
from sim.pool.contract import Decision, Dispatch, Refuse, ReplicaView, SimRequest
from sim.pool.settings import RoutingSetup
from workers.wire import Heartbeat, KvDelta, ReplicaStatus

TICK_S = 0.1
"""Seconds between two checks of every queue without an event (scheduler/service.py)."""
_AGENT = "pool"


@dataclass(frozen=True, slots=True)
class PenstockOptions:
    """Options of the scheduler under test."""

    exact: bool = False
    """Whether prefix knowledge comes from KV events and token blocks; otherwise it is mirrored from routed prompts."""
    deadline_s: float = 600.0
    """Maximum seconds that a request may wait in the queue."""
    state: SchedulerConfig = field(
        default_factory=lambda: SchedulerConfig(admission=AdmissionRules(enabled=False))
    )
    """Rules of placement, queue and admission; admission is off where all policies refuse the same share."""
    name: str = "penstock"
    by_rank: bool = True
    """Whether ranks are targets of their own; otherwise a replica is one target, and its engine chooses the rank."""
    blind: bool = False
    """Whether placement uses load alone, as in a pool without prefix routing."""


@dataclass(slots=True)
class _ClientRequest:
    """A client's state of one of its requests."""

    request: PlaceRequest
    router: int
    arrived_at: float
    placement: Placement | None = None
    placed_at: float = 0.0
    produced: int = 0
    prefilled: bool = False
    failed_on: list[str] = field(default_factory=list)


class PenstockRouting:
    """The scheduler behind one socket, with `setup.routers` clients."""

    central = True

    def __init__(self, setup: RoutingSetup, options: PenstockOptions) -> None:
        self.name = options.name
        self.wants_kv_events = options.exact
        self._setup = setup
        self._options = options
        self._epochs = 0
        self._state = self._new_state(0.0)
        self._held: dict[int, _ClientRequest] = {}
        self._counters: dict[tuple[str, str, str], TenantCounter] = {}
        """The fair queue's counters as last sent to the clients, by model, tenant and tier."""
        self._beats = 0
        self._tick_at = 0.0

    # Events of API processes

    def arrive(self, request: SimRequest, router: int, now: float) -> None:
        """Submit a request; one that failed on a replica excludes that replica's present incarnation."""
        held = self._held.get(request.key)
        if held is None:
            held = self._held[request.key] = _ClientRequest(self._place_request(request, router), router, now)
        held.placement = None
        held.prefilled, held.produced = False, 0
        waited_s = now - held.arrived_at
        held.request.exclude = list(held.failed_on)
        held.request.deadline_s = max(0.1, self._options.deadline_s - waited_s)
        self._state.submit(_client(router), held.request, now)

    def first_token(self, key: int, replica_id: str, now: float) -> None:
        """Report the first token: the prompt no longer waits for prefill."""
        if held := self._held.get(key):
            held.prefilled = True
            self._state.prefill_done(_client(held.router), str(key), replica_id, now)

    def progress(self, key: int, replica_id: str, produced: int, now: float) -> None:
        """Report the number of output tokens so far."""
        if held := self._held.get(key):
            held.produced = produced
            self._state.progress(_client(held.router), str(key), replica_id, produced, now)

    def finished(
        self,
        key: int,
        replica_id: str,
        *,
        prompt_tokens: int,
        cached_tokens: int,
        output_tokens: int,
        failed: bool,
        now: float,
    ) -> None:
        """End the placement; a failed request stays known, to be placed on another replica."""
        held = self._held.get(key)
        if held is None:
            return
        released = Released(
            str(key),
            replica_id,
            0 if failed else prompt_tokens,
            0 if failed else cached_tokens,
            output_tokens,
            failed,
        )
        self._state.release(_client(held.router), released, now)
        if failed:
            held.failed_on.append(replica_id)
            held.placement = None
        else:
            del self._held[key]

    # Events of agents

    def metrics(self, views: Sequence[ReplicaView], now: float) -> None:
        """Send one agent's heartbeat for the whole pool, and the fair queue's counters to the clients."""
        self._beats += 1
        beat = Heartbeat(
            _AGENT, "pool", "boot", self._beats, "sim", "sim", 0, [self._status(view) for view in views], {}
        )
        self._state.heartbeat(beat, now)
        for counter in self._state.changed_counters():
            self._counters[counter.model, counter.tenant_id, counter.tier] = counter

    def kv_events(self, delta: KvDelta, now: float) -> None:
        """Apply an engine's KV cache events."""
        self._state.fleet.kv_events(delta)

    # Decisions

    def choose(
        self, request: PlaceRequest, pool: Pool, now: float, rng: policy.Rng
    ) -> policy.Choice | policy.Blocked:
        """Choose a replica by our own policy; a subclass tries others behind our queue."""
        return policy.place(request, pool, now, rng)

    def decide(self, now: float) -> list[Decision]:
        """Return the scheduler state's decisions."""
        if now >= self._tick_at:
            self._state.tick()
            self._tick_at = now + TICK_S
        decisions: list[Decision] = []
        for decision in self._state.dispatch(now, self._setup.rng):
            if isinstance(decision, Placed):
                decisions.append(self._placed(decision.placement, now))
            else:
                key = int(decision.refusal.request_id)
                self._held.pop(key, None)
                decisions.append(Refuse(key, decision.refusal.reason, decision.refusal.retry_after_s))
        return decisions

    def next_wake(self, now: float) -> float | None:
        """Return the next wake: after TICK_S while requests wait, now where a decision was interrupted, else None."""
        if self._state.unfinished:
            return now
        return None if self._state.next_deadline() is None else max(now, self._tick_at)

    # Faults

    def restart(self, now: float) -> None:
        """Replace the scheduler: clients announce their placements, waiting requests and counters."""
        self._state = self._new_state(now)
        counters = list(self._counters.values())
        for router in range(self._setup.routers):
            mine = [held for held in self._held.values() if held.router == router]
            placements = [
                announced_placement(
                    held.request,
                    held.placement,
                    produced=held.produced,
                    prefilled=held.prefilled,
                    age_s=now - held.placed_at,
                    counted_by=held.placement.epoch,
                )
                for held in mine
                if held.placement is not None
            ]
            queued = [
                AnnouncedRequest(held.request, now - held.arrived_at)
                for held in mine
                if held.placement is None
            ]
            self._state.announce(_client(router), Announce(placements, queued, counters), now)

    def router_lost(self, router: int, now: float) -> None:
        """Drop a dead client's requests and placements."""
        self._state.drop_waiting(_client(router))
        self._state.drop_placements(_client(router), now)
        self._held = {key: held for key, held in self._held.items() if held.router != router}

    def open_requests(self) -> int:
        """Return the requests that the scheduler state or a client still holds; anything but 0 after a run is a
        leak.
        """
        waiting = sum(view.waiting + view.in_flight for view in self._state.queue_views(0.0))
        return len(self._held) + waiting

    def prefix_entries(self) -> int:
        """Return the prefix entries held for all replicas together."""
        return sum(len(replica.prefix) for replica in self._state.fleet.replicas.values())

    # Translation

    def _new_state(self, now: float) -> SchedulerState:
        self._epochs += 1
        return SchedulerState(
            f"epoch-{self._epochs}",
            now,
            grace_s=3.0 if now > 0 else 0.0,
            config=self._options.state,
            choose=self.choose,
        )

    def _place_request(self, request: SimRequest, router: int) -> PlaceRequest:
        estimates = self._setup.estimates
        exact = self._options.exact
        return PlaceRequest(
            request_id=str(request.key),
            tenant_id=request.tenant,
            model=request.model,
            prompt_tokens=request.prompt_tokens if exact else estimates.prompt_tokens(request, router),
            output_tokens=estimates.output_tokens(request, router),
            blocks=[] if self._options.blind else list(request.blocks),
            block_tokens=request.block_tokens if exact else 0,
            tier=request.tier,
            weight=request.weight,
        )

    def _placed(self, placement: Placement, now: float) -> Dispatch:
        key = int(placement.request_id)
        if held := self._held.get(key):
            held.placement, held.placed_at = placement, now
            asked = held.request
            counter = TenantCounter(asked.tenant_id, asked.model, placement.service, asked.tier)
            self._counters[counter.model, counter.tenant_id, counter.tier] = counter
        return Dispatch(
            key,
            placement.replica_id,
            placement.hit_tokens,
            placement.predicted_ttft_s,
            placement.priority or 0,
            placement.rank,
        )

    def _status(self, view: ReplicaView) -> ReplicaStatus:
        return ReplicaStatus(
            view.replica_id,
            view.model,
            "sim://" + view.replica_id,
            "sim",
            view.boot_id,
            view.state,
            view.capacity,
            view.running,
            view.waiting,
            view.kv_usage,
            simulated=True,
            targets=view.targets,
            ranks=list(view.ranks) if self._options.by_rank else [],
            prefix_kind="tokens" if self._options.exact else "text",
        )


def penstock(options: PenstockOptions | None = None) -> Callable[[RoutingSetup], PenstockRouting]:
    """Return a factory for `simulate`."""
    chosen = options or PenstockOptions()
    return lambda setup: PenstockRouting(setup, chosen)


def _client(router: int) -> str:
    return f"api-{router}"
