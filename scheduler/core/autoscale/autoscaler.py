"""The autoscaler: takes observations and returns a plan. Deterministic, without a clock.

Call `observe` every two seconds; `plan` changes nothing and may be called at any time.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import msgspec

from scheduler.core.autoscale.arrange import Arrangement, arrange
from scheduler.core.autoscale.bound_demand import BoundDemand
from scheduler.core.autoscale.claims import Desired
from scheduler.core.autoscale.coming import (
    Need,
    coming_replicas,
    create_s,
    in_creation,
    keep_turns,
    share_out,
)
from scheduler.core.autoscale.creation import Creations, Wanted, creatable_in, is_open
from scheduler.core.autoscale.floors import (
    Floor,
    Place,
    allowed,
    apart,
    place_of,
    removable_by_floors,
    shortfalls,
    spare_first,
    within_reach,
)
from scheduler.core.autoscale.ladder import host_dwell_s
from scheduler.core.autoscale.model_planner import AutoscalerSettings, ModelPlanner
from scheduler.core.autoscale.plan import Plan
from scheduler.core.autoscale.plan_rows import kept_hosts, kind_plans, model_row, places_of
from scheduler.core.autoscale.retire import removable, retire_order
from scheduler.core.autoscale.spending import ROUNDING_USD, Spending, over_budget
from scheduler.core.autoscale.state import (
    UNBOUND,
    Binding,
    CreatingHost,
    HostObservation,
    ModelSpec,
    Observation,
    PlanningError,
    ReplicaObservation,
    Rung,
    RungFigures,
)
from scheduler.wire import HostRemovalView, ModelPlanView


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
        self._bound = {name: BoundDemand(model.spec, self._settings) for name, model in self._models.items()}
        self._floors: dict[str, list[Floor]] = {}
        """By model, as of the last observation: what can be had."""
        self._shown_floors: dict[str, list[Floor]] = {}
        """And what is needed."""
        self._last: Observation | None = None
        self._idle_since: dict[str, float] = {}
        self._awake_at: dict[str, float] = {}
        """By model: when a replica was last awake, or when its planning began."""

    def add(self, spec: ModelSpec) -> None:
        """Plan for a model. A known model keeps its demand and takes the new specification."""
        if known := self._models.get(spec.model):
            known.update_spec(spec)
            self._bound[spec.model].update_spec(spec)
        else:
            self._models[spec.model] = ModelPlanner(spec, self._settings)
            self._bound[spec.model] = BoundDemand(spec, self._settings)
            self._models = dict(sorted(self._models.items()))

    def observe(self, observation: Observation) -> None:
        """Take an observation. Raises PlanningError when a model's figures are out of range."""
        elapsed = observation.now - self._last.now if self._last is not None else 0.0
        before = self._last.creating if self._last is not None else []
        creating = in_creation(observation.creating, observation.replicas, before)
        self._last = observation = msgspec.structs.replace(observation, creating=creating)
        for name, model in self._models.items():
            mine = [replica for replica in observation.replicas if replica.model == name]
            mine += coming_replicas(model.spec, creating)
            rows = [row for row in observation.demand if row.model == name]
            with _attribute_errors(name):
                served = self._bound[name].observe(observation, rows, elapsed, mine)
                model.observe(observation, served, elapsed, mine)
            self._shown_floors[name] = self._bound[name].floors(observation.now)
            reached = [
                floor
                if creatable_in(model.spec, floor.where)
                else within_reach(floor, sum(floor.has(replica) for replica in mine))
                for floor in self._shown_floors[name]
            ]
            if limits := model.spec.places:
                places = places_of(model.spec, mine)
                reached = [allowed(floor, limits, places) for floor in reached]
            self._floors[name] = reached
            awake = any(
                replica.rung is Rung.AWAKE for replica in observation.replicas if replica.model == name
            )
            if awake or name not in self._awake_at:
                self._awake_at[name] = observation.now
        self._last = msgspec.structs.replace(observation, creating=self._share_out(observation))
        busy = {
            replica.host_id
            for replica in observation.replicas
            if replica.rung is Rung.AWAKE or replica.draining
        }
        idle = {host.host_id for host in observation.hosts} - busy
        self._idle_since = {
            host_id: self._idle_since.get(host_id, observation.now) for host_id in sorted(idle)
        }

    def _share_out(self, observation: Observation) -> list[CreatingHost]:
        """The hosts in creation, the shared ones with the replicas that are needed now."""
        own = [host for host in observation.creating if not host.slots]
        if len(own) == len(observation.creating):
            return own
        needs = {}
        for name, model in self._models.items():
            awake = [row for row in observation.replicas if row.model == name and row.rung is Rung.AWAKE]
            awake += coming_replicas(model.spec, own)
            needs[name] = Need(model.spec, model.need, self._floors[name], model.held, awake)
        return share_out(observation.creating, needs)

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
        kept_there: dict[str, dict[Binding, int]] = {}
        """And those that are needed in some places."""
        present = self._spending(observation)
        for replica in observation.replicas:
            if replica.rung is Rung.AWAKE and replica.model in self._models:
                present.take(replica)
        for name, model in self._models.items():
            floors = self._floors[name]
            with _attribute_errors(name):
                row, whole, removed = self._target(model, floors, observation, present)
            rows.append(row)
            retiring |= {replica.replica_id for replica in removed}
            reasons[name] = row.reason
            left_usd = model.spec.budget_usd_per_hour - present.whole(name)
            desired[name], kept[name] = self._desired(model, whole, row.target, observation, left_usd)
            kept_there[name] = {floor.where: floor.comes for floor in desired[name].floors}
        specs = {name: model.spec for name, model in self._models.items()}
        spending = self._spending(observation)
        arrangement = arrange(
            specs, desired, reasons, observation.hosts, observation.replicas, spending, frozenset(retiring)
        )
        awake = self._awake_places(arrangement, observation)
        keep_turns(observation.creating, specs, desired, awake, kept, kept_there)
        # A host would come later than its turn.
        for name, soonest_s in arrangement.turns.items():
            kept[name] = max(kept[name], int(soonest_s <= create_s(specs[name])))
        for (name, where), soonest_s in arrangement.turns_there.items():
            kept_there[name][where] = max(kept_there[name][where], int(soonest_s <= create_s(specs[name])))
        rows = [
            msgspec.structs.replace(row, turn_in_s=round(arrangement.turns[row.model], 3))
            if row.model in arrangement.turns
            else row
            for row in rows
        ]
        lacking = {
            name: self._lacking(desired[name], count - kept[name], arrangement, kept_there[name], row)
            for row in rows
            if (count := arrangement.missing.get(name := row.model)) is not None
        }
        creations = self._create(arrangement, lacking, observation, spending, awake)
        destroy = self._destroy(observation, arrangement, spending)
        return Plan(
            at=observation.now,
            models=rows,
            replicas=arrangement.replicas,
            kinds=kind_plans(specs, observation, creations, destroy),
            create=creations.found,
            destroy=destroy,
            kept=kept_hosts(observation, arrangement.replicas),
        )

    def _desired(
        self, model: ModelPlanner, whole: int, target: int, observation: Observation, budget_usd: float
    ) -> tuple[Desired, int]:
        """What is wanted of the replicas that there are; for how many of the whole a host comes.

        `target`: with those that only some places need. `budget_usd` may be spent per hour yet.
        """
        name, spec = model.spec.model, model.spec
        floors, coming = self._floors[name], coming_replicas(spec, observation.creating)
        recent = model.max_needed(observation.now - self._settings.swap_stabilization_s)
        recent = max(recent, sum(more for _, more in shortfalls(floors, (), lambda floor: floor.recent)))

        # Whatever comes, the first replica keeps its claim while requests are held.
        first = int(model.held > 0 and target > 0)
        aim = max(first, whole - len(coming))
        total = max(aim, target - len(coming))
        here: list[Floor] = []
        for floor in floors:
            came = sum(floor.has(replica) for replica in coming)
            need = max(int(floor.held > 0 and floor.need > 0), floor.need - came)
            left_usd = math.inf if floor.least else budget_usd
            here.append(
                replace(
                    floor,
                    need=need,
                    recent=max(need, floor.recent - came),
                    least=max(0, floor.least - came),
                    comes=need - max(0, floor.need - came),
                    open=is_open(spec, floor.where, observation.failures, left_usd),
                )
            )
        desired = Desired(
            aim,
            min(max(first, recent - len(coming)), total),
            model.planned_rate,
            model.held,
            model.busy,
            observation.now - self._awake_at.get(name, observation.now),
            tuple(here),
            max(aim, spec.max_awake - len(coming)),
            tuple(place_of(replica) for replica in coming),
        )
        return desired, aim - max(0, whole - len(coming))

    def _lacking(
        self,
        desired: Desired,
        count: int,
        arrangement: Arrangement,
        kept: Mapping[Binding, int],
        row: ModelPlanView,
    ) -> list[Wanted]:
        """The replicas of a model for which hosts are missing: those in some places first, then `count` of the whole,
        to which the others may belong."""
        name, found = row.model, []
        room = whole_room = arrangement.room[name]
        short_there = arrangement.missing_there[name]
        # Minima first: there may not be room for more below the maximum.
        for floor in sorted(desired.floors, key=lambda floor: not floor.least):
            lack = short_there.get(floor.where, 0) - kept[floor.where]
            more = max(0, min(room, lack))
            room -= more
            below = max(0, min(more, lack - (floor.need - floor.least))) if floor.least else 0
            whole_room -= 0 if floor.served else below
            reason = f"{name}: {more} more {floor.reason}"
            found.append(Wanted(floor.where, more, reason, below, floor.served))
        # The rest leaves room for minima, also while no host comes for them.
        return [*found, Wanted(UNBOUND, min(count, max(0, whole_room)), row.reason)]

    def _spending(self, observation: Observation) -> Spending:
        specs = {name: model.spec for name, model in self._models.items()}
        return Spending(specs, observation.hosts, observation.replicas, observation.creating)

    def _target(
        self, model: ModelPlanner, floors: Sequence[Floor], observation: Observation, spending: Spending
    ) -> tuple[ModelPlanView, int, list[ReplicaObservation]]:
        """A model in the plan; its desired number of replicas without those that only some places need; and the
        replicas to remove, which `spending` counts as released."""
        spec = model.spec
        present = [row for row in observation.replicas if row.model == spec.model and row.rung is Rung.AWAKE]
        present += coming_replicas(spec, observation.creating)
        count, removed = len(present), list[ReplicaObservation]()
        target, reason = count, model.reason
        if model.need > 1 and (lack := model.shortfall(model.need - 1)):
            reason += f", with {model.need - 1} {lack}"
        needed = self._shown_floors[spec.model]
        short = shortfalls(floors, present)
        missing = apart(short, places_of(spec, observation.replicas)) if short else 0
        if short:
            reason = "; ".join([f"{more} more {floor.reason}" for floor, more in short] + [reason])
        held = model.max_kept(observation.now - self._settings.stabilization_s)
        whole = model.observed_since(observation.now - self._settings.stabilization_s)
        if limited := self._over_limits(spec, present, floors, observation, spending):
            removed, reason = limited
            target = count - len(removed)
            missing = 0
        elif (need := min(model.need, spec.max_awake)) > count:
            target = need
        elif held < count and whole:
            at_least = max(held, spec.min_awake)
            paid = {host.host_id for host in observation.hosts if not host.contracted}
            order = removable(
                model.load, present, at_least, spec.capacity, spec.targets, self._settings.margins, floors
            )
            removed = [replica for replica in order if replica.host_id in paid]
            target = count - len(removed)
            reason = f"no look of the last {self._settings.stabilization_s:.0f} s needed more than {held} ({reason})"
            if not removed:
                reason += "; the rest costs nothing while no other model wants the GPUs"
        present_then = count - len(removed)
        total = max(target, min(present_then + missing, spec.max_awake))
        if total < present_then + missing:
            reason += f"; at most {spec.max_awake} may be awake"
        for limits in spec.places:
            full = sum(limits.where.allows(*place_of(row)) for row in present) >= limits.most
            if full and (target > count or any(limits.where.overlaps(floor.where) for floor, _ in short)):
                reason += f"; at most {limits.most} may be awake {limits.where.words}"
        words = f"{spec.model}: {count} -> {total} awake: {reason}"
        rate = round(model.planned_rate + self._bound[spec.model].unserved_rate, 3)
        return model_row(spec.model, present, total, rate, words, needed, spec.places), target, removed

    @staticmethod
    def _over_limits(
        spec: ModelSpec,
        present: list[ReplicaObservation],
        floors: Sequence[Floor],
        observation: Observation,
        spending: Spending,
    ) -> tuple[list[ReplicaObservation], str] | None:
        """Replicas to remove at once, because more are awake than the model's maximum or budget allows, and why."""
        coming = {host.host_id for host in observation.creating}
        order = retire_order(present, spec.capacity)
        order = spare_first(floors, [row for row in order if row.host_id not in coming])
        short = shortfalls(floors, present, lambda floor: floor.least)
        beyond = len(order) - spec.max_awake
        removed, left = order[: max(0, beyond)], order[max(0, beyond) :]
        # Those that no minimum needs leave room for the minimum of a region or a kind.
        minima = [replace(floor, kept=floor.least) for floor in floors]
        room_for = apart(short, places_of(spec, observation.replicas)) + min(0, beyond)
        removed += removable_by_floors(minima, left, left)[: max(0, room_for)] if short else []
        reason = f"at most {spec.max_awake} may be awake"
        reason += "".join(f", {more} of them {floor.where.words}" for floor, more in short)
        for replica in removed:
            spending.release(replica)
        for limits in spec.places:
            left = [row for row in order if row not in removed]
            there = [row for row in left if limits.where.allows(*place_of(row))]
            for replica in there[: max(0, len(there) - limits.most)]:
                removed.append(replica)
                spending.release(replica)
                reason = f"at most {limits.most} may be awake {limits.where.words}"
        if spending.exceeds(spec.model):
            left = [row for row in order if row not in removed]
            removed += over_budget(spec, left, spending, floors)
            reason = f"at most {spec.budget_usd_per_hour:.2f} USD per hour may be spent"
        return (removed, reason) if removed else None

    def _create(
        self,
        arrangement: Arrangement,
        lacking: Mapping[str, Sequence[Wanted]],
        observation: Observation,
        spending: Spending,
        there: Mapping[str, Sequence[Place]],
    ) -> Creations:
        """Hosts to create for the `lacking` replicas, by model, within the models' budgets. `there`: where those are
        that are awake or come."""
        creations = Creations(observation.creating, observation.failures)
        awake = Counter(row.model for row in arrangement.replicas if row.rung is Rung.AWAKE)
        for name, wanted in sorted(lacking.items()):
            spec = self._models[name].spec
            coming = len(coming_replicas(spec, observation.creating))
            below = max(0, spec.min_awake - coming - awake[name])
            creations.add(spec, wanted, below, spending.whole(name), there[name])
        return creations

    def _awake_places(self, arrangement: Arrangement, observation: Observation) -> dict[str, list[Place]]:
        """By model: where its replicas are that will be awake, or come with hosts in creation."""
        places = {row.replica_id: place_of(row) for row in observation.replicas}
        found: dict[str, list[Place]] = {name: [] for name in self._models}
        for row in arrangement.replicas:
            if row.rung is Rung.AWAKE:
                found[row.model].append(places[row.replica_id])
        for name, model in self._models.items():
            found[name] += map(place_of, coming_replicas(model.spec, observation.creating))
        return found

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
                removals.append(HostRemovalView(host.host_id, host.kind, reason, host.region))
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
