"""The autoscaler: takes observations and returns a plan. Deterministic, without a clock.

Call `observe` every two seconds (the fast loop); `plan` changes nothing and may be called at any time. Arrivals are
collected into the bins of the forecast (the slow loop).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from scheduler.core.autoscale.arrange import Desired, arrange
from scheduler.core.autoscale.ladder import host_dwell_s
from scheduler.core.autoscale.model_planner import AutoscalerSettings, ModelPlanner
from scheduler.core.autoscale.plan import HostPlan, ModelPlan, Plan
from scheduler.core.autoscale.retire import removable
from scheduler.core.autoscale.state import (
    DemandObservation,
    HostObservation,
    ModelSpec,
    Observation,
    PlanningError,
    ReplicaObservation,
    Rung,
    RungFigures,
)


@contextmanager
def _attribute_errors(model: str) -> Iterator[None]:
    """Raise PlanningError with the model's name instead of ArithmeticError or ValueError."""
    try:
        yield
    except (ArithmeticError, ValueError) as error:
        raise PlanningError(model, error) from error


class Autoscaler:
    """Plans for all models of a pool. Times are monotonic seconds."""

    def __init__(
        self, specs: Mapping[str, ModelSpec] | None = None, settings: AutoscalerSettings | None = None
    ) -> None:
        self._settings = settings or AutoscalerSettings()
        self._models = {
            name: ModelPlanner(spec, self._settings) for name, spec in sorted((specs or {}).items())
        }
        self._last: Observation | None = None
        self._idle_since: dict[str, float] = {}

    def add(self, spec: ModelSpec) -> None:
        """Plan for a model. A known model keeps its demand and takes the new specification."""
        if known := self._models.get(spec.model):
            known.update_spec(spec)
        else:
            self._models[spec.model] = ModelPlanner(spec, self._settings)
            self._models = dict(sorted(self._models.items()))

    def add_history(self, model: str, arrivals: int, time_of_day_s: float) -> None:
        """Add a bin of past arrivals that ended at `time_of_day_s`, oldest first, to learn the season."""
        self._models[model].add_history(arrivals, time_of_day_s)

    def observe(self, observation: Observation) -> None:
        """Take an observation. Raises PlanningError when a model's figures are out of range."""
        elapsed = observation.now - self._last.now if self._last is not None else 0.0
        self._last = observation
        demand = {row.model: row for row in observation.demand}
        for name, model in self._models.items():
            mine = [replica for replica in observation.replicas if replica.model == name]
            with _attribute_errors(name):
                model.observe(observation, demand.get(name, DemandObservation(name)), elapsed, mine)
        busy = {
            replica.host_id
            for replica in observation.replicas
            if replica.rung is Rung.AWAKE or replica.draining
        }
        idle = {host.host_id for host in observation.hosts} - busy
        self._idle_since = {
            host_id: self._idle_since.get(host_id, observation.now) for host_id in sorted(idle)
        }

    def plan(self) -> Plan:
        """The plan as of the last observation. Raises RuntimeError before the first observation, and
        PlanningError."""
        observation = self._last
        if observation is None:
            raise RuntimeError("observe() first")
        desired: dict[str, Desired] = {}
        reasons: dict[str, str] = {}
        rows: list[ModelPlan] = []
        retiring: set[str] = set()
        for name, model in self._models.items():
            with _attribute_errors(name):
                row, removed = self._target(model, observation)
            rows.append(row)
            retiring |= {replica.replica_id for replica in removed}
            reasons[name] = row.reason
            recent = model.max_needed(observation.now - self._settings.swap_stabilization_s)
            desired[name] = Desired(row.target, min(recent, row.target), model.planned_rate)
        specs = {name: model.spec for name, model in self._models.items()}
        arrangement = arrange(
            specs, desired, reasons, observation.hosts, observation.replicas, frozenset(retiring)
        )
        return Plan(
            at=observation.now,
            models=rows,
            replicas=arrangement.replicas,
            create=self._create(arrangement.missing, reasons),
            destroy=self._destroy(
                observation, {row.host_id for row in arrangement.replicas if row.rung is Rung.AWAKE}
            ),
        )

    def _target(
        self, model: ModelPlanner, observation: Observation
    ) -> tuple[ModelPlan, list[ReplicaObservation]]:
        """The desired number of a model's replicas, and the replicas to remove."""
        spec = model.spec
        present = [row for row in observation.replicas if row.model == spec.model and row.rung is Rung.AWAKE]
        pending = sum(row.ready_in_s > 0.0 for row in present)
        count, removed = len(present), list[ReplicaObservation]()
        target, reason = count, model.reason
        if model.need > 1 and (lack := model.shortfall(model.need - 1)):
            reason += f", with {model.need - 1} {lack}"
        held = model.max_kept(observation.now - self._settings.stabilization_s)
        whole = model.observed_since(observation.now - self._settings.stabilization_s)
        if model.need > count:
            target = model.need
        elif held < count and whole:
            at_least = max(held, spec.min_awake)
            paid = {host.host_id for host in observation.hosts if not host.contracted}
            order = removable(
                model.load, present, at_least, spec.capacity, spec.targets, self._settings.margins
            )
            removed = [replica for replica in order if replica.host_id in paid]
            target = count - len(removed)
            reason = f"no look of the last {self._settings.stabilization_s:.0f} s needed more than {held} ({reason})"
            if not removed:
                reason += "; the rest costs nothing while nobody else wants the GPUs"
        words = f"{spec.model}: {count} -> {target} awake: {reason}"
        return ModelPlan(spec.model, count - pending, pending, target, model.planned_rate, words), removed

    def _create(self, missing: Mapping[str, int], reasons: Mapping[str, str]) -> list[HostPlan]:
        """Droplets to create for replicas without room, for models that may have droplets."""
        plans = []
        for name, count in sorted(missing.items()):
            spec = self._models[name].spec
            if spec.host_kind:
                plans.append(HostPlan(spec.host_kind, -(-count // spec.per_host), reason=reasons[name]))
        return plans

    def _destroy(self, observation: Observation, used: set[str]) -> list[HostPlan]:
        """Droplets to destroy: no replica was awake on them for their dwell time."""
        plans = []
        for host in sorted(observation.hosts, key=lambda host: host.host_id):
            if host.contracted or host.host_id in used or host.host_id not in self._idle_since:
                continue
            rests = observation.now - self._idle_since[host.host_id]
            if rests < self._settings.stabilization_s:
                continue
            limit = max(self._settings.stabilization_s, self._dwell(host, observation))
            if rests >= limit:
                reason = f"nobody was awake on it for {rests:.0f} s, limit {limit:.0f} s"
                plans.append(HostPlan("", 1, host.host_id, reason))
        return plans

    def _dwell(self, host: HostObservation, observation: Observation) -> float:
        """The longest dwell time of the models that rest on a host, in seconds."""
        limits = [0.0]
        for replica in observation.replicas:
            if replica.host_id != host.host_id or replica.model not in self._models:
                continue
            ladder = self._models[replica.model].spec.ladder
            removed = ladder.get(Rung.DESTROYED, RungFigures(float("inf")))
            rests = ladder.get(replica.rung, RungFigures(0.0))
            limits.append(host_dwell_s(host, rests, removed))
        return max(limits)
