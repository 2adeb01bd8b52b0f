"""The autoscaler: look after look in, a plan out. Deterministic; holds no clock.

Call `observe` every two seconds (the fast loop), then `plan` as often as wanted: planning changes nothing. Arrivals are
collected into the forecast's bins (the slow loop) on the way.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from scheduler.core.autoscale.arrange import Wanted, arrange
from scheduler.core.autoscale.ladder import host_dwell_s
from scheduler.core.autoscale.plan import HostPlan, ModelPlan, Plan
from scheduler.core.autoscale.retire import spare
from scheduler.core.autoscale.state import (
    DemandSeen,
    HostSeen,
    ModelSpec,
    Observation,
    ReplicaSeen,
    Rung,
    RungFigures,
    Unplannable,
)
from scheduler.core.autoscale.watch import ModelWatch, Settings


@contextmanager
def _naming(model: str) -> Iterator[None]:
    """Say whose figures arithmetic failed on. Raises Unplannable instead of ArithmeticError and ValueError."""
    try:
        yield
    except (ArithmeticError, ValueError) as error:
        raise Unplannable(model, error) from error


class Autoscaler:
    """Plans for all models of a pool."""

    def __init__(
        self, specs: Mapping[str, ModelSpec] | None = None, settings: Settings | None = None
    ) -> None:
        self._settings = settings or Settings()
        self._models = {
            name: ModelWatch(spec, self._settings) for name, spec in sorted((specs or {}).items())
        }
        self._last: Observation | None = None
        self._idle_since: dict[str, float] = {}

    def add(self, spec: ModelSpec) -> None:
        """Plan for a model from now on; a known one keeps what was learnt of its demand and takes the specification."""
        if known := self._models.get(spec.model):
            known.respecify(spec)
        else:
            self._models[spec.model] = ModelWatch(spec, self._settings)
            self._models = dict(sorted(self._models.items()))

    def remember(self, model: str, arrivals: int, time_of_day_s: float) -> None:
        """A bin of past arrivals that ended at `time_of_day_s`, oldest first: the season is learnt from these."""
        self._models[model].count_past(arrivals, time_of_day_s)

    def observe(self, look: Observation) -> None:
        """Take a look at the pool. Raises Unplannable where a model's figures are out of all range."""
        elapsed = look.now - self._last.now if self._last is not None else 0.0
        self._last = look
        demand = {row.model: row for row in look.demand}
        for name, model in self._models.items():
            mine = [replica for replica in look.replicas if replica.model == name]
            with _naming(name):
                model.observe(look, demand.get(name, DemandSeen(name)), elapsed, mine)
        busy = {
            replica.host_id for replica in look.replicas if replica.rung is Rung.AWAKE or replica.draining
        }
        idle = {host.host_id for host in look.hosts} - busy
        self._idle_since = {host_id: self._idle_since.get(host_id, look.now) for host_id in sorted(idle)}

    def plan(self) -> Plan:
        """What should be, as of the last look. Raises RuntimeError before the first, Unplannable as `observe` does."""
        look = self._last
        if look is None:
            raise RuntimeError("observe() first")
        wanted: dict[str, Wanted] = {}
        why: dict[str, str] = {}
        rows: list[ModelPlan] = []
        going: set[str] = set()
        for name, model in self._models.items():
            with _naming(name):
                row, gone = self._target(model, look)
            rows.append(row)
            going |= {replica.replica_id for replica in gone}
            why[name] = row.reason
            recent = model.most_needed(look.now - self._settings.swap_hold_s)
            wanted[name] = Wanted(row.target, min(recent, row.target), model.upper)
        specs = {name: model.spec for name, model in self._models.items()}
        floor = arrange(specs, wanted, why, look.hosts, look.replicas, frozenset(going))
        return Plan(
            at=look.now,
            models=rows,
            replicas=floor.replicas,
            create=self._create(floor.missing, why),
            destroy=self._destroy(look, {row.host_id for row in floor.replicas if row.rung is Rung.AWAKE}),
        )

    def _target(self, model: ModelWatch, look: Observation) -> tuple[ModelPlan, list[ReplicaSeen]]:
        """How many of one model, and who goes if fewer."""
        spec = model.spec
        present = [row for row in look.replicas if row.model == spec.model and row.rung is Rung.AWAKE]
        pending = sum(row.ready_in_s > 0.0 for row in present)
        count, gone = len(present), list[ReplicaSeen]()
        target, reason = count, model.reason
        if model.need > 1 and (lack := model.why(model.need - 1)):
            reason += f", with {model.need - 1} {lack}"
        held = model.most_kept(look.now - self._settings.hold_s)
        whole = model.watched_since(look.now - self._settings.hold_s)
        if model.need > count:
            target = model.need
        elif held < count and whole:
            at_least = max(held, spec.min_awake)
            paid = {host.host_id for host in look.hosts if not host.contracted}
            order = spare(model.load, present, at_least, spec.capacity, spec.targets, self._settings.margins)
            gone = [replica for replica in order if replica.host_id in paid]
            target = count - len(gone)
            reason = f"no look of the last {self._settings.hold_s:.0f} s needed more than {held} ({reason})"
            if not gone:
                reason += "; the rest costs nothing while nobody else wants the GPUs"
        words = f"{spec.model}: {count} -> {target} awake: {reason}"
        return ModelPlan(spec.model, count - pending, pending, target, model.upper, words), gone

    def _create(self, missing: Mapping[str, int], why: Mapping[str, str]) -> list[HostPlan]:
        """Droplets for what no host has room for, where the model may have droplets."""
        plans = []
        for name, count in sorted(missing.items()):
            spec = self._models[name].spec
            if spec.host_kind:
                plans.append(HostPlan(spec.host_kind, -(-count // spec.per_host), reason=why[name]))
        return plans

    def _destroy(self, look: Observation, used: set[str]) -> list[HostPlan]:
        """Droplets on which nobody was awake for as long as the ski-rental rule says."""
        plans = []
        for host in sorted(look.hosts, key=lambda host: host.host_id):
            if host.contracted or host.host_id in used or host.host_id not in self._idle_since:
                continue
            rests = look.now - self._idle_since[host.host_id]
            if rests < self._settings.hold_s:
                continue
            limit = max(self._settings.hold_s, self._dwell(host, look))
            if rests >= limit:
                reason = f"nobody was awake on it for {rests:.0f} s, limit {limit:.0f} s"
                plans.append(HostPlan("", 1, host.host_id, reason))
        return plans

    def _dwell(self, host: HostSeen, look: Observation) -> float:
        """The longest that any of the models resting on a host wants to keep it."""
        limits = [0.0]
        for replica in look.replicas:
            if replica.host_id != host.host_id or replica.model not in self._models:
                continue
            ladder = self._models[replica.model].spec.ladder
            gone = ladder.get(Rung.DESTROYED, RungFigures(float("inf")))
            rests = ladder.get(replica.rung, RungFigures(0.0))
            limits.append(host_dwell_s(host, rests, gone))
        return max(limits)
