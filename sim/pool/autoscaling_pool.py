"""Simulates a pool for a day under a scaling policy, and measures GPU time and SLO attainment.

Routing follows the scheduler for every policy: to the warm replica unless another would be one second faster,
with short engine queues, and one queue per model for the remaining requests. Only the policies' decisions
differ.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

from scheduler.core.autoscale.state import (
    CacheValue,
    DemandObservation,
    HostObservation,
    ModelSpec,
    Observation,
    ReplicaObservation,
    Rung,
)
from sim.pool.autoscaling_load import Arrival
from sim.pool.autoscaling_replica import FluidReplica, RunningRequest
from sim.pool.autoscaling_result import DayResult
from workers.step_time import own_prefill_s

PLAN_INTERVAL_S = 2.0
"""Seconds between two evaluations of a policy; slower policies skip some evaluations."""
SHORT_QUEUE_S = 0.6
"""Seconds of prefill work that a replica may have before requests wait in the scheduler's queue instead."""
AFFINITY_SLACK_S = 1.0
"""Seconds by which a warm replica may be slower than the best one and still be chosen."""
HIT_MEMORY_S = 180.0
"""Time constant of a replica's hit rate, in seconds."""


class Scaler(Protocol):
    """A scaling policy under test."""

    name: str

    def evaluate(self, seen: Observation) -> Mapping[str, Rung]:
        """The rung that each replica should be on; those left out stay as they are."""


@dataclass(slots=True)
class PoolReplica:
    """A replica of the pool, awake or resting."""

    replica_id: str
    spec: ModelSpec
    host_id: str
    rung: Rung
    engine: FluidReplica
    ready_at: float = 0.0
    """Time at which a waking replica starts to serve, in seconds; infinity while it waits for its GPUs."""
    draining: bool = False
    since: float = 0.0
    came_from: Rung = Rung.STOPPED
    hit_rate: float = 0.0
    hit_at: float = 0.0
    version: int = 0

    def holds_gpus(self) -> bool:
        """Whether the replica holds its GPUs at present."""
        return self.draining or (self.rung is Rung.AWAKE and self.ready_at < math.inf)

    def serves(self, now: float) -> bool:
        """Whether requests may be sent to it."""
        return self.rung is Rung.AWAKE and not self.draining and self.ready_at <= now

    def hits(self, now: float, tokens: float = 0.0) -> float:
        """Return the recent rate of cached tokens per second, after adding `tokens` cached tokens at `now`."""
        self.hit_rate *= math.exp((self.hit_at - now) / HIT_MEMORY_S)
        self.hit_rate += tokens / HIT_MEMORY_S
        self.hit_at = now
        return self.hit_rate


class _Demand:
    """Arrivals of one model since the last observation."""

    def __init__(self) -> None:
        self.count = 0
        self.prompt = self.uncached = self.uncached_sq = self.output = self.output_sq = 0.0

    def take(self, model: str, queue: Sequence[Arrival]) -> DemandObservation:
        """Return the counts as an observation and reset them."""
        count = max(1, self.count)
        seen = DemandObservation(
            model,
            self.count,
            self.prompt / count,
            self.uncached / count,
            self.uncached_sq / count,
            self.output / count,
            self.output_sq / count,
            len(queue),
            float(sum(row.prompt for row in queue)),
        )
        self.count = 0
        self.prompt = self.uncached = self.uncached_sq = self.output = self.output_sq = 0.0
        return seen


class DayPool:
    """One day of one pool under one policy."""

    def __init__(
        self,
        slots: Sequence[PoolReplica],
        hosts: Sequence[HostObservation],
        scaler: Scaler,
        day_s: float,
        *,
        patience_s: float = math.inf,
        models: Sequence[str] = (),
    ) -> None:
        """Requests that wait longer than `patience_s` seconds for a replica leave unanswered and count as SLO
        violations. `models` may have requests before they have a replica.
        """
        self._patience_s = patience_s
        self._slots = {slot.replica_id: slot for slot in slots}
        self._hosts = {host.host_id: host for host in hosts}
        self._contracted = sum(host.gpus for host in hosts if host.contracted)
        self._scaler = scaler
        self._day_s = day_s
        self._of: dict[str, list[PoolReplica]] = {model: [] for model in models}
        for slot in slots:
            self._of.setdefault(slot.spec.model, []).append(slot)
        self._queues: dict[str, deque[Arrival]] = {model: deque() for model in self._of}
        self._demand = {model: _Demand() for model in self._of}
        self._events: list[tuple[float, int, str, int]] = []
        self._count = 0
        self._looks = 0
        self._told = 0.0
        self.result = DayResult()

    def play(self, arrivals: Sequence[Arrival]) -> DayResult:
        """Simulate the whole day; requests that still run at its end are completed by the awake replicas."""
        look_at, index, last = 0.0, 0, len(arrivals)
        self.result.requests = last
        for arrival in arrivals:
            self.result.requests_by_model[arrival.model] = (
                self.result.requests_by_model.get(arrival.model, 0) + 1
            )
        while True:
            arrival_at = arrivals[index].at if index < last else math.inf
            event_at = self._events[0][0] if self._events else math.inf
            if look_at <= min(arrival_at, event_at) and look_at <= self._day_s:
                self._apply_plan(look_at)
                look_at += PLAN_INTERVAL_S
            elif event_at <= arrival_at:
                if event_at == math.inf:
                    return self.result
                self._event(*heappop(self._events))
            else:
                self._arrive(arrivals[index])
                index += 1

    def add_host(self, host: HostObservation, slots: Sequence[PoolReplica], now: float) -> None:
        """Add a host with its replicas, which serve from their `ready_at` on."""
        self._hosts[host.host_id] = host
        for slot in slots:
            slot.since = now
            self._slots[slot.replica_id] = slot
            self._of[slot.spec.model].append(slot)
            heappush(self._events, (slot.ready_at, self._next(), slot.replica_id, -1))

    def remove_host(self, host_id: str) -> int:
        """Remove a host with its replicas; returns how many requests ran on it, which are lost."""
        del self._hosts[host_id]
        gone = [slot for slot in self._slots.values() if slot.host_id == host_id]
        for slot in gone:
            del self._slots[slot.replica_id]
            self._of[slot.spec.model].remove(slot)
        return sum(slot.engine.running for slot in gone)

    # Requests

    def _arrive(self, arrival: Arrival) -> None:
        demand = self._demand[arrival.model]
        demand.count += 1
        demand.prompt += arrival.prompt
        demand.output += arrival.output
        demand.output_sq += arrival.output * arrival.output
        queue = self._queues[arrival.model]
        queue.append(arrival)
        self._dispatch(arrival.model, arrival.at)

    def _dispatch(self, model: str, now: float) -> None:
        queue = self._queues[model]
        while queue and now - queue[0].at > self._patience_s:
            self._record_violation(queue.popleft(), late=True)
        while queue and (slot := self._choose(queue[0], now)) is not None:
            self._send(queue.popleft(), slot, now)

    def _choose(self, arrival: Arrival, now: float) -> PoolReplica | None:
        """Return the warm replica or the one with the shortest prefill; None when every engine queue is full."""
        best, best_s = None, math.inf
        warm, warm_s, warm_hit = None, math.inf, 0
        for slot in self._of[arrival.model]:
            if not slot.serves(now):
                continue
            engine = slot.engine
            rate = engine.capacity.prefill_tokens_per_s
            if engine.unprefilled > SHORT_QUEUE_S * rate or engine.running >= engine.capacity.max_num_seqs:
                continue
            hit = engine.cached(arrival)
            seconds = (engine.unprefilled + arrival.prompt - hit) / rate + 1e-4 * engine.running
            if seconds < best_s:
                best, best_s = slot, seconds
            if hit > warm_hit:
                warm, warm_s, warm_hit = slot, seconds, hit
        if warm is not None and warm_s <= best_s + AFFINITY_SLACK_S:
            return warm
        return best

    def _send(self, arrival: Arrival, slot: PoolReplica, now: float) -> None:
        hit = slot.engine.cached(arrival)
        run = RunningRequest(arrival, hit)
        demand = self._demand[arrival.model]
        demand.uncached += run.uncached
        demand.uncached_sq += run.uncached * run.uncached
        self.result.prompt_tokens += arrival.prompt
        self.result.cached_tokens += hit
        slot.hits(now, hit)
        slot.engine.add(run, now)
        self._plan_event(slot)

    def _plan_event(self, slot: PoolReplica) -> None:
        slot.version += 1
        at = slot.engine.next_at()
        if at < math.inf:
            heappush(self._events, (at, self._next(), slot.replica_id, slot.version))

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _event(self, now: float, _order: int, replica_id: str, version: int) -> None:
        slot = self._slots.get(replica_id)
        if slot is None:
            return
        if version < 0:
            if slot.ready_at == now:
                self._dispatch(slot.spec.model, now)
            return
        if version != slot.version:
            return
        for run in slot.engine.step(now):
            self._record_finished(run, slot.spec, now)
        self._plan_event(slot)
        if slot.draining and not slot.engine.running:
            self._rest(slot, now)
        self._dispatch(slot.spec.model, now)

    def _record_finished(self, run: RunningRequest, spec: ModelSpec, now: float) -> None:
        arrival, targets = run.arrival, spec.targets
        ttft = run.first_at - arrival.at + spec.capacity.request_s
        self.result.ttft_s.append(ttft)
        limit = targets.ttft_s + own_prefill_s(spec.capacity, arrival.prompt)
        tpot = (now - run.first_at) / (arrival.output - 1) if arrival.output > 1 else 0.0
        if arrival.output > 1:
            self.result.tpot_s.append(tpot)
        late, slow = ttft > limit, tpot > targets.tpot_s
        if late or slow:
            self._record_violation(arrival, late=late, slow=slow)
        else:
            self.result.met += 1
            self.result.met_by_model[spec.model] = self.result.met_by_model.get(spec.model, 0) + 1

    def _record_violation(self, arrival: Arrival, *, late: bool = False, slow: bool = False) -> None:
        self.result.ttft_violations += late
        self.result.tpot_violations += slow
        self.result.violations.append((arrival.model, arrival.at))

    # Replicas

    def _apply_plan(self, now: float) -> None:
        held = self._contracted + sum(
            slot.spec.capacity.gpus
            for slot in self._slots.values()
            if slot.holds_gpus() and not self._hosts[slot.host_id].contracted
        )
        self.result.gpu_s += held * (now - self._told)
        self._told = now
        if self._looks % 10 == 0:
            self.result.awake.append((now, sum(slot.holds_gpus() for slot in self._slots.values())))
        self._looks += 1
        wanted = self._scaler.evaluate(self.observation(now))
        for replica_id, rung in sorted(wanted.items(), key=lambda item: (item[1] is Rung.AWAKE, item[0])):
            slot = self._slots[replica_id]
            if rung is Rung.AWAKE:
                self._wake(slot, now)
            elif slot.rung is Rung.AWAKE:
                self._retire(slot, rung, now)
            elif rung.depth > slot.rung.depth and not slot.draining:
                slot.rung, slot.since = rung, now
        self._start_waiting(now)

    def observation(self, now: float) -> Observation:
        """Return the observation that a policy receives."""
        replicas = [
            ReplicaObservation(
                slot.replica_id,
                slot.spec.model,
                slot.host_id,
                slot.rung,
                now - slot.since,
                self._ready_in(slot, now),
                slot.draining,
                slot.engine.running,
                int(slot.engine.unprefilled),
                slot.engine.kv_usage,
                CacheValue(slot.hits(now)),
            )
            for slot in self._slots.values()
        ]
        demand = [self._demand[model].take(model, self._queues[model]) for model in self._of]
        return Observation(now, list(self._hosts.values()), replicas, demand)

    def _ready_in(self, slot: PoolReplica, now: float) -> float:
        if slot.rung is not Rung.AWAKE:
            return 0.0
        if slot.ready_at == math.inf:
            return slot.spec.ladder[slot.came_from].wake_s
        return max(0.0, slot.ready_at - now)

    def _wake(self, slot: PoolReplica, now: float) -> None:
        if slot.draining:
            slot.draining, slot.rung = False, Rung.AWAKE
            self.result.scale_ups += 1
            self._dispatch(slot.spec.model, now)
        elif slot.rung is not Rung.AWAKE:
            slot.came_from, slot.rung, slot.since = slot.rung, Rung.AWAKE, now
            slot.ready_at = math.inf
            self.result.scale_ups += 1

    def _start_waiting(self, now: float) -> None:
        """Start to wake the replicas whose GPUs have become free."""
        for slot in self._slots.values():
            if slot.rung is Rung.AWAKE and slot.ready_at == math.inf and not slot.draining:
                used = sum(
                    other.spec.capacity.gpus
                    for other in self._slots.values()
                    if other.host_id == slot.host_id and other.holds_gpus()
                )
                if used + slot.spec.capacity.gpus <= self._hosts[slot.host_id].gpus:
                    slot.ready_at = now + slot.spec.ladder[slot.came_from].wake_s
                    heappush(self._events, (slot.ready_at, self._next(), slot.replica_id, -1))

    def _retire(self, slot: PoolReplica, rung: Rung, now: float) -> None:
        self.result.scale_downs += 1
        serving = slot.ready_at <= now
        slot.rung, slot.since = rung, now
        slot.draining = serving and slot.engine.running > 0
        if not slot.draining:
            self._rest(slot, now)

    def _rest(self, slot: PoolReplica, now: float) -> None:
        slot.draining, slot.since = False, now
        slot.engine.clear_cache()
        slot.hit_rate = 0.0
