"""Runs any scaling policy as a controller of the stepwise cluster: translates its view and the resulting actions."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from scheduler.core.autoscale.state import (
    CacheValue,
    DemandObservation,
    HostObservation,
    ModelSpec,
    Observation,
    ReplicaObservation,
    Rung,
)
from sim.pool.autoscaling_pool import PLAN_INTERVAL_S, Scaler
from sim.pool.contract import ReplicaView
from sim.pool.control import ActionKind, ModelLoad, PoolAction, PoolView
from workers.wire import ReplicaState

_BLOCK_TOKENS = 64
_CACHE_S = 600.0
"""Seconds within which each reused block is assumed to have been hit once, because the cluster counts blocks,
not hits.
"""


class ScalerController:
    """Implements the cluster's Controller. Each replica has its own GPUs."""

    every_s = PLAN_INTERVAL_S

    def __init__(self, scaler: Scaler, specs: Mapping[str, ModelSpec]) -> None:
        self._scaler, self._specs = scaler, specs
        self._since: dict[str, tuple[Rung, float]] = {}
        self._means: dict[str, tuple[float, float, float]] = {}
        self._known: dict[str, ReplicaView] = {}

    def observe(self, view: PoolView, now: float) -> Sequence[PoolAction]:
        """Translate the pool's view for the policy, and return the actions that its decision requires."""
        demand = [self._demand(model, view.loads.get(model, ModelLoad())) for model in self._specs]
        # No agent reports a stopped replica: its last report is kept.
        present = {each.replica_id: each for each in view.replicas if each.model in self._specs}
        stopped = {
            name: replace(each, state=ReplicaState.STOPPED, running=0, waiting=0, kv_usage=0.0)
            for name, each in self._known.items()
            if name not in present
        }
        self._known |= present
        replicas = [self._replica(each, view, now) for _, each in sorted((stopped | present).items())]
        hosts = [
            HostObservation(row.replica_id, self._specs[row.model].capacity.gpus, 1e6, contracted=False)
            for row in replicas
        ]
        wanted = self._scaler.evaluate(Observation(now, hosts, replicas, demand))
        found = (self._action(row, wanted.get(row.replica_id, row.rung)) for row in replicas)
        return [action for action in found if action is not None]

    def _action(self, replica: ReplicaObservation, rung: Rung) -> PoolAction | None:
        if rung is replica.rung:
            return None
        name = replica.replica_id
        if rung is Rung.AWAKE:
            if replica.draining:
                return PoolAction(ActionKind.RESUME, name)
            return PoolAction(ActionKind.START if replica.rung is Rung.STOPPED else ActionKind.WAKE, name)
        if rung in (Rung.SLEEP_1, Rung.SLEEP_2):
            return PoolAction(ActionKind.SLEEP, name, level=1 if rung is Rung.SLEEP_1 else 2)
        return PoolAction(ActionKind.STOP, name)

    def _replica(self, each: ReplicaView, view: PoolView, now: float) -> ReplicaObservation:
        rung = self._rung(each, view)
        before = self._since.get(each.replica_id)
        if before is None or before[0] is not rung:
            self._since[each.replica_id] = (rung, now)
        since = now - self._since[each.replica_id][1]
        spec = self._specs[each.model]
        loading = each.state in (ReplicaState.LOADING, ReplicaState.FAILED)
        slowest = max(figures.wake_s for figures in spec.ladder.values())
        cached = view.cached_blocks.get(each.replica_id, 0) * _BLOCK_TOKENS
        return ReplicaObservation(
            each.replica_id,
            each.model,
            each.replica_id,
            rung,
            since,
            max(PLAN_INTERVAL_S, slowest - since) if loading else 0.0,
            each.state is ReplicaState.DRAINING,
            each.running + each.waiting,
            round(each.waiting * self._means.get(each.model, (0.0, 0.0, 0.0))[1]),
            each.kv_usage,
            CacheValue(cached / _CACHE_S),
        )

    def _rung(self, each: ReplicaView, view: PoolView) -> Rung:
        if each.state in (ReplicaState.READY, ReplicaState.LOADING, ReplicaState.FAILED):
            return Rung.AWAKE
        if each.state is ReplicaState.STOPPED:
            return Rung.STOPPED
        if each.state is ReplicaState.DRAINING:
            return min(self._specs[each.model].ladder, key=lambda rung: rung.depth)
        return Rung.SLEEP_2 if view.sleep_levels.get(each.replica_id, 1) >= 2 else Rung.SLEEP_1

    def _demand(self, model: str, load: ModelLoad) -> DemandObservation:
        """Return the model's demand; the cluster reports only totals, so lengths are assumed to vary like an
        exponential.
        """
        prompt, uncached, output = self._means.get(model, (0.0, 0.0, 0.0))
        if load.arrived:
            prompt = load.prompt_tokens / load.arrived
        if load.finished:
            uncached = (load.finished_prompt_tokens - load.cached_tokens) / load.finished
            output = load.output_tokens / load.finished
        self._means[model] = (prompt, uncached or prompt, output)
        unknown = uncached or prompt
        return DemandObservation(
            model, load.arrived, prompt, unknown, 2.0 * unknown * unknown, output, 2.0 * output * output,
            load.waiting, load.waiting * unknown,
        )  # fmt: skip
