"""The autoscaler: takes observations and returns a plan. Deterministic, without a clock.

Call `observe` every two seconds; `plan` changes nothing and may be called at any time.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from scheduler.core.autoscale.arrange import Arrangement, arrange
from scheduler.core.autoscale.claims import Desired
from scheduler.core.autoscale.creation import Creations, coming_replicas, create_s, in_creation
from scheduler.core.autoscale.ladder import host_dwell_s
from scheduler.core.autoscale.model_planner import AutoscalerSettings, ModelPlanner
from scheduler.core.autoscale.plan import Plan
from scheduler.core.autoscale.retire import removable, retire_order
from scheduler.core.autoscale.spending import ROUNDING_USD, Spending, over_budget
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
from scheduler.wire import HostRemovalView, KindPlanView, ModelPlanView


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
        self._awake_at: dict[str, float] = {}
        """By model: when a replica was last awake, or when its planning began."""

    def add(self, spec: ModelSpec) -> None:
        """Plan for a model. A known model keeps its demand and takes the new specification."""
        if known := self._models.get(spec.model):
            known.update_spec(spec)
        else:
            self._models[spec.model] = ModelPlanner(spec, self._settings)
            self._models = dict(sorted(self._models.items()))

    def observe(self, observation: Observation) -> None:
        """Take an observation. Raises PlanningError when a model's figures are out of range."""
        elapsed = observation.now - self._last.now if self._last is not None else 0.0
        creating = in_creation(observation.creating, observation.replicas)
        self._last = observation = msgspec.structs.replace(observation, creating=creating)
        demand = {row.model: row for row in observation.demand}
        for name, model in self._models.items():
            mine = [replica for replica in observation.replicas if replica.model == name]
            mine += coming_replicas(model.spec, creating)
            with _attribute_errors(name):
                model.observe(observation, demand.get(name, DemandObservation(name)), elapsed, mine)
            awake = any(
                replica.rung is Rung.AWAKE for replica in observation.replicas if replica.model == name
            )
            if awake or name not in self._awake_at:
                self._awake_at[name] = observation.now
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
        rows: list[ModelPlanView] = []
        retiring: set[str] = set()
        kept: dict[str, int] = {}
        """By model: replicas of its target for which a host comes."""
        present = self._spending(observation)
        for replica in observation.replicas:
            if replica.rung is Rung.AWAKE and replica.model in self._models:
                present.take(replica)
        for name, model in self._models.items():
            coming = len(coming_replicas(model.spec, observation.creating))
            with _attribute_errors(name):
                row, removed = self._target(model, observation, present)
            rows.append(row)
            retiring |= {replica.replica_id for replica in removed}
            reasons[name] = row.reason
            recent = model.max_needed(observation.now - self._settings.swap_stabilization_s)
            # Whatever comes, the first replica keeps its claim while requests are held.
            first = int(model.held > 0 and row.target > 0)
            target = max(first, row.target - coming)
            kept[name] = target - max(0, row.target - coming)
            desired[name] = Desired(
                target,
                min(max(first, recent - coming), target),
                model.planned_rate,
                model.held,
                model.busy,
                observation.now - self._awake_at.get(name, observation.now),
            )
        specs = {name: model.spec for name, model in self._models.items()}
        spending = self._spending(observation)
        arrangement = arrange(
            specs, desired, reasons, observation.hosts, observation.replicas, spending, frozenset(retiring)
        )
        for name, soonest_s in arrangement.turns.items():  # a host would come later than its turn
            kept[name] = max(kept[name], int(soonest_s <= create_s(specs[name])))
        rows = [
            msgspec.structs.replace(row, turn_in_s=round(arrangement.turns[row.model], 3))
            if row.model in arrangement.turns
            else row
            for row in rows
        ]
        lacking = {name: count - kept[name] for name, count in arrangement.missing.items()}
        creations = self._create(arrangement, lacking, reasons, observation, spending)
        destroy = self._destroy(observation, arrangement, spending)
        return Plan(
            at=observation.now,
            models=rows,
            replicas=arrangement.replicas,
            kinds=kind_plans(specs, observation, creations, destroy),
            create=creations.found,
            destroy=destroy,
        )

    def _spending(self, observation: Observation) -> Spending:
        specs = {name: model.spec for name, model in self._models.items()}
        return Spending(specs, observation.hosts, observation.replicas, observation.creating)

    def _target(
        self, model: ModelPlanner, observation: Observation, spending: Spending
    ) -> tuple[ModelPlanView, list[ReplicaObservation]]:
        """The desired number of a model's replicas, and the replicas to remove; `spending` counts these as released."""
        spec = model.spec
        present = [row for row in observation.replicas if row.model == spec.model and row.rung is Rung.AWAKE]
        present += coming_replicas(spec, observation.creating)
        pending = sum(row.ready_in_s > 0.0 for row in present)
        count, removed = len(present), list[ReplicaObservation]()
        target, reason = count, model.reason
        if model.need > 1 and (lack := model.shortfall(model.need - 1)):
            reason += f", with {model.need - 1} {lack}"
        held = model.max_kept(observation.now - self._settings.stabilization_s)
        whole = model.observed_since(observation.now - self._settings.stabilization_s)
        if limited := self._over_limits(spec, present, observation, spending):
            removed, reason = limited
            target = count - len(removed)
        elif model.need > count:
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
                reason += "; the rest costs nothing while no other model wants the GPUs"
        words = f"{spec.model}: {count} -> {target} awake: {reason}"
        rate = round(model.planned_rate, 3)
        return ModelPlanView(spec.model, count - pending, pending, target, rate, words), removed

    @staticmethod
    def _over_limits(
        spec: ModelSpec,
        present: list[ReplicaObservation],
        observation: Observation,
        spending: Spending,
    ) -> tuple[list[ReplicaObservation], str] | None:
        """Replicas to remove at once, because more are awake than the model's maximum or budget allows, and why."""
        coming = {host.host_id for host in observation.creating}
        order = [row for row in retire_order(present, spec.capacity) if row.host_id not in coming]
        removed = order[: max(0, len(order) - spec.max_awake)]
        reason = f"at most {spec.max_awake} may be awake"
        for replica in removed:
            spending.release(replica)
        if spending.exceeds(spec.model):
            removed += over_budget(spec, order[len(removed) :], spending)
            reason = f"at most {spec.budget_usd_per_hour:.2f} USD per hour may be spent"
        return (removed, reason) if removed else None

    def _create(
        self,
        arrangement: Arrangement,
        lacking: Mapping[str, int],
        reasons: Mapping[str, str],
        observation: Observation,
        spending: Spending,
    ) -> Creations:
        """Hosts to create for the `lacking` replicas, by model, within the models' budgets."""
        creations = Creations(observation.creating, observation.failures)
        awake = Counter(row.model for row in arrangement.replicas if row.rung is Rung.AWAKE)
        for name, count in sorted(lacking.items()):
            spec = self._models[name].spec
            coming = len(coming_replicas(spec, observation.creating))
            below = max(0, spec.min_awake - coming - awake[name])
            creations.add(spec, count, below, spending.whole(name), reasons[name])
        return creations

    def _destroy(
        self, observation: Observation, arrangement: Arrangement, spending: Spending
    ) -> list[HostRemovalView]:
        """Hosts to destroy: no replica was awake on them for their dwell time, or their models exceed their budgets."""
        used = {row.host_id for row in arrangement.replicas if row.rung is Rung.AWAKE}
        used |= {host.host_id for host in observation.creating}
        removals = []
        for host in sorted(observation.hosts, key=lambda host: host.host_id):
            if host.contracted or host.host_id in used or host.host_id not in self._idle_since:
                continue
            rests = observation.now - self._idle_since[host.host_id]
            limit = self._dwell(host, observation, spending)
            if rests >= limit:
                reason = f"nothing was awake on it for {rests:.0f} s, limit {limit:.0f} s"
                removals.append(HostRemovalView(host.host_id, host.kind, reason))
        return removals

    def _dwell(self, host: HostObservation, observation: Observation, spending: Spending) -> float:
        """The longest dwell time of the models that rest on a host, in seconds; a model over its budget has none."""
        limits: list[float] = []
        for replica in observation.replicas:
            if replica.host_id != host.host_id or replica.model not in self._models:
                continue
            spec = self._models[replica.model].spec
            if spending.whole(spec.model) > spec.budget_usd_per_hour + ROUNDING_USD:
                limits.append(0.0)
                continue
            removed = spec.ladder.get(Rung.DESTROYED, RungFigures(float("inf")))
            rests = spec.ladder.get(replica.rung, RungFigures(0.0))
            replacement = min(
                (option.usd_per_hour for option in spec.kinds if option.usd_per_hour > 0.0),
                default=host.usd_per_hour,
            )
            limits.append(host_dwell_s(host, rests, removed, replacement))
        return min(max(limits, default=self._settings.stabilization_s), self._settings.host_idle_s)


def kind_plans(
    specs: Mapping[str, ModelSpec],
    observation: Observation,
    creations: Creations,
    destroy: Sequence[HostRemovalView],
) -> list[KindPlanView]:
    """One row for each kind of host that is present, in creation, allowed or failing, sorted by kind."""
    present = Counter(host.kind for host in observation.hosts)
    creating = Counter(host.kind for host in observation.creating)
    more = Counter[str]()
    for row in creations.found:
        more[row.kind] += row.count
    less = Counter(row.kind for row in destroy)
    failures = {row.kind: row.count for row in observation.failures}
    allowed = {option.kind for spec in specs.values() for option in spec.kinds}
    kinds = {*present, *creating, *allowed, *failures} - {""}
    return [
        KindPlanView(
            kind,
            present[kind],
            creating[kind],
            present[kind] + creating[kind] + more[kind] - less[kind],
            failures.get(kind, 0),
            round(creations.retry_in_s(kind), 1),
        )
        for kind in sorted(kinds)
    ]
