"""Scaling policies behind one protocol: Penstock's and those in use elsewhere. Each competitor has one knob.

The competitors decide a replica count. Replicas wake in order of wake time and stop newest first, as a
Kubernetes deployment removes its newest pods.
"""

import math
from collections import deque
from collections.abc import Mapping

from scheduler.core.autoscale.autoscaler import Autoscaler
from scheduler.core.autoscale.ladder import wake_s
from scheduler.core.autoscale.model_planner import AutoscalerSettings
from scheduler.core.autoscale.plan import Plan
from scheduler.core.autoscale.state import ModelSpec, Observation, ReplicaObservation, Rung


class PenstockScaler:
    """The scheduler's autoscaler; its knob is in its settings."""

    name = "penstock"

    def __init__(self, specs: Mapping[str, ModelSpec], settings: AutoscalerSettings | None = None) -> None:
        self.autoscaler = Autoscaler(specs, settings)
        self.plan: Plan | None = None

    def evaluate(self, seen: Observation) -> Mapping[str, Rung]:
        """Record the observation and plan the rungs."""
        self.autoscaler.observe(seen)
        self.plan = self.autoscaler.plan()
        return {row.replica_id: row.rung for row in self.plan.replicas}


class ByCount:
    """Base of the policies that decide a replica count; subclasses implement `decide`."""

    name = ""
    every_s = 15.0

    def __init__(self, specs: Mapping[str, ModelSpec], stabilisation_s: float = 300.0) -> None:
        self._specs = specs
        self._stabilisation_s = stabilisation_s
        self._next_at = 0.0
        self._wanted: dict[str, deque[tuple[float, int]]] = {model: deque() for model in specs}

    def evaluate(self, seen: Observation) -> Mapping[str, Rung]:
        """Decide every `every_s` seconds; scale down only to the largest count wanted in the stabilisation window."""
        if seen.now < self._next_at:
            return {}
        self._next_at = seen.now + self.every_s
        rungs: dict[str, Rung] = {}
        for model, spec in self._specs.items():
            mine = [replica for replica in seen.replicas if replica.model == model]
            waiting = next((row.waiting for row in seen.demand if row.model == model), 0)
            awake = [replica for replica in mine if replica.rung is Rung.AWAKE]
            want = max(spec.min_awake, min(spec.max_awake, self.decide(spec, awake, waiting)))
            rungs |= count_rungs(spec, mine, self._stabilised(model, want, seen.now, len(awake)))
        return rungs

    def decide(self, spec: ModelSpec, awake: list[ReplicaObservation], waiting: int) -> int:
        """Return how many replicas should be awake, given those that are awake or waking and the requests
        without a replica.
        """
        raise NotImplementedError

    def _stabilised(self, model: str, want: int, now: float, count: int) -> int:
        window = self._wanted[model]
        window.append((now, want))
        while window[0][0] < now - self._stabilisation_s:
            window.popleft()
        return want if want >= count else min(count, max(number for _, number in window))


class Static(ByCount):
    """A constant number of replicas for the whole day. Its knob is that number."""

    name = "static"

    def __init__(self, specs: Mapping[str, ModelSpec], replicas: int) -> None:
        super().__init__(specs)
        self._replicas = replicas

    def decide(self, spec: ModelSpec, awake: list[ReplicaObservation], waiting: int) -> int:
        """Return the constant number."""
        del spec, awake, waiting
        return self._replicas


class Hpa(ByCount):
    """Kubernetes' horizontal pod autoscaler on requests in flight per replica: N' = ceil(N * metric / target),
    with a tolerance of 10 %, evaluated every 15 s, and five minutes of stabilisation before scaling down. Its
    knob is the target.
    """

    name = "hpa"

    def __init__(self, specs: Mapping[str, ModelSpec], target: float) -> None:
        super().__init__(specs)
        self._target = target

    def decide(self, spec: ModelSpec, awake: list[ReplicaObservation], waiting: int) -> int:
        """Apply the published formula to the serving replicas."""
        del spec
        serving = max(1, sum(replica.ready_in_s <= 0.0 for replica in awake))
        flight = waiting + sum(replica.running for replica in awake)
        ratio = flight / serving / self._target
        if abs(ratio - 1.0) <= 0.1:
            return len(awake)
        return math.ceil(serving * ratio)


class Wva(ByCount):
    """llm-d's workload variant autoscaler, by saturation.

    It adds one replica when the mean spare KV cache is below 0.1 or the mean spare queue is below 3, and none
    while one is waking. It removes one when the remaining replicas would still have both after taking over its
    load. A replica counts as full at 80 % KV usage or 5 waiting requests. The knob is a factor on the KV
    figures.
    """

    name = "wva"
    every_s = 30.0
    full_kv = 0.8
    full_queue = 5.0
    spare_kv = 0.1
    spare_queue = 3.0

    def __init__(self, specs: Mapping[str, ModelSpec], factor: float = 1.0) -> None:
        super().__init__(specs)
        self._factor = factor

    def decide(self, spec: ModelSpec, awake: list[ReplicaObservation], waiting: int) -> int:
        """Apply the published rule."""
        serving = [replica for replica in awake if replica.ready_in_s <= 0.0]
        if not serving:
            return max(1, len(awake))
        kv = sum(replica.kv_usage for replica in serving) / len(serving)
        prefill = spec.capacity.prefill_tokens_per_s
        queued = sum(replica.waiting_tokens > prefill for replica in serving)
        queue = (waiting + queued) / len(serving)
        if self._short(kv, queue):
            return len(awake) + (len(awake) == len(serving))
        if len(serving) > 1 and not self._short(
            kv * len(serving) / (len(serving) - 1), queue * len(serving) / (len(serving) - 1)
        ):
            return len(awake) - 1
        return len(awake)

    def _short(self, kv: float, queue: float) -> bool:
        limit = self.full_kv * self._factor
        return limit - kv < self.spare_kv * self._factor or self.full_queue - queue < self.spare_queue


def count_rungs(spec: ModelSpec, replicas: list[ReplicaObservation], count: int) -> dict[str, Rung]:
    """Return the rungs for `count` awake replicas: those that wake fastest are woken first, the newest are
    stopped first.
    """
    awake = [replica for replica in replicas if replica.rung is Rung.AWAKE]
    if len(awake) < count:
        resting = [replica for replica in replicas if replica.rung is not Rung.AWAKE]
        resting.sort(key=lambda replica: (wake_s(spec, replica), replica.replica_id))
        return {replica.replica_id: Rung.AWAKE for replica in resting[: count - len(awake)]}
    rest = min(spec.ladder, key=lambda rung: rung.depth)
    awake.sort(key=lambda replica: (replica.since_s, replica.replica_id))
    return {replica.replica_id: rest for replica in awake[: len(awake) - count]}
