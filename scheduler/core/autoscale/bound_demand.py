"""Demand of one model that is bound to regions or classes of GPU: measured, and the floors that follow."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from scheduler.core.autoscale.capacity import MIN_RATE
from scheduler.core.autoscale.creation import creatable_in
from scheduler.core.autoscale.floors import Floor, Place, in_order, place_of
from scheduler.core.autoscale.meter import DemandMeter
from scheduler.core.autoscale.model_planner import AutoscalerSettings, ModelPlanner
from scheduler.core.autoscale.state import (
    UNBOUND,
    Binding,
    DemandObservation,
    ModelSpec,
    Observation,
    ReplicaObservation,
    Rung,
)

MAX_BINDINGS = 64
"""Bindings of one model that are planned for; of more, those that come first in `BoundDemand._precedence`."""
STAYS = 1.25
"""Factor by which other demand must be larger to take the place of one that is planned for, so that noise changes
nothing."""


class BoundDemand:
    """The demand of one model by the places that it is bound to."""

    def __init__(self, spec: ModelSpec, settings: AutoscalerSettings) -> None:
        self._spec, self._settings = _without_minimum(spec), settings
        self._meters: dict[Binding, DemandMeter] = {}
        """Of every binding with demand. There are only as many as places, and sets of them, are told apart."""
        self._planners: dict[Binding, ModelPlanner] = {}
        """Of those that are planned for."""
        self._unserved: frozenset[Binding] = frozenset()
        """Bindings in whose places no replica is awake or comes."""

    def update_spec(self, spec: ModelSpec) -> None:
        """Plan with another specification, like `ModelPlanner.update_spec`."""
        self._spec = _without_minimum(spec)
        for planner in self._planners.values():
            planner.update_spec(self._spec)

    def observe(
        self,
        observation: Observation,
        rows: Sequence[DemandObservation],
        elapsed_s: float,
        replicas: Sequence[ReplicaObservation],
    ) -> DemandObservation:
        """Take the model's demand, a row for each binding; returns what `replicas` may serve, in one row.

        Demand of places without a replica needs none elsewhere.
        """
        bound = [row for row in rows if row.where.bound]
        for row in bound:
            if row.arrivals or row.waiting:
                self._meters.setdefault(row.where, DemandMeter())
        demand = {
            where: merged(self._spec.model, [row for row in bound if row.where.within(where)], where)
            for where in self._meters
        }
        self._choose(demand, replicas)
        for where, meter in list(self._meters.items()):
            seen = demand[where]
            quiet = not (seen.arrivals or seen.waiting)
            if (planner := self._planners.get(where)) is None:
                meter.observe(seen, elapsed_s)
                if quiet and meter.rate < MIN_RATE:
                    del self._meters[where]
                continue
            # What runs there may be of any model.
            there = [
                msgspec.structs.replace(row, running=0, waiting_tokens=0)
                for row in replicas
                if where.allows(row.region, row.gpu)
            ]
            planner.observe(observation, seen, elapsed_s, there)
            quiet = quiet and not (planner.planned_rate or planner.need)
            if quiet and not planner.max_kept(observation.now - self._settings.stabilization_s):
                del self._planners[where], self._meters[where]
        awake = [row for row in replicas if row.rung is Rung.AWAKE]
        self._unserved = frozenset(
            where
            for where in (*self._planners, *(row.where for row in bound))
            if not any(where.allows(row.region, row.gpu) for row in awake)
        )
        served = [row for row in rows if row.where not in self._unserved]
        return merged(self._spec.model, served, UNBOUND)

    def _choose(
        self, demand: Mapping[Binding, DemandObservation], replicas: Sequence[ReplicaObservation]
    ) -> None:
        """Choose the bindings that are planned for."""
        chosen = set(self._meters)
        if len(chosen) > MAX_BINDINGS:
            places = {place_of(row) for row in replicas}
            order = sorted(chosen, key=lambda where: self._precedence(demand[where], places))
            chosen = set(order[:MAX_BINDINGS])
        self._planners = {
            where: self._planners.get(where) or ModelPlanner(self._spec, self._settings, meter)
            for where, meter in self._meters.items()
            if where in chosen
        }

    def _precedence(
        self, seen: DemandObservation, places: Collection[Place]
    ) -> tuple[bool, bool, float, Binding]:
        """Key of the order in which bindings are planned for: those that can be met before others, single places before
        sets, and the largest demand first. `places`: where replicas are or come."""
        where = seen.where
        met = creatable_in(self._spec, where) or any(where.allows(*place) for place in places)
        requests = max(self._meters[where].recent + seen.arrivals, seen.waiting)
        return not met, where.is_set, -requests * (STAYS if where in self._planners else 1.0), where

    def floors(self, now: float) -> list[Floor]:
        """The replicas that are needed in some places, those of parts of places first."""
        settings = self._settings
        found = {
            where: Floor(
                where,
                planner.need,
                planner.max_needed(now - settings.swap_stabilization_s),
                planner.max_kept(now - settings.stabilization_s),
                planner.held,
                f"{where.words}: {planner.reason}",
                served=where not in self._unserved,
            )
            for where, planner in self._planners.items()
        }
        for limits in self._spec.places:
            if limits.least:
                known = found.get(limits.where, Floor(limits.where, 0, served=False))
                found[limits.where] = _at_least(known, limits.least)
        return in_order(found.values())

    @property
    def unserved_rate(self) -> float:
        """Arrivals per second that are planned for and that no replica may serve."""
        whole = (
            where
            for where in self._unserved & self._planners.keys()
            if not any(where != other and where.within(other) for other in self._unserved)
        )
        return sum(self._planners[where].planned_rate for where in sorted(whole))


def _at_least(floor: Floor, least: int) -> Floor:
    """A floor with the least that an admin wants there."""
    return replace(
        floor,
        need=max(floor.need, least),
        recent=max(floor.recent, least),
        kept=max(floor.kept, least),
        reason=floor.reason
        if floor.need >= least
        else f"{floor.where.words}: at least {least} are to be awake",
        least=least,
        served=floor.served and floor.need >= least,
    )


def _without_minimum(spec: ModelSpec) -> ModelSpec:
    """The minimum of a model is not one of each place."""
    return msgspec.structs.replace(spec, min_awake=0)


def merged(model: str, rows: Iterable[DemandObservation], where: Binding) -> DemandObservation:
    """The demand of several rows in one. Means are those of all arrivals; without arrivals they say nothing."""
    found = list(rows)
    if len(found) == 1:
        return msgspec.structs.replace(found[0], where=where)
    arrivals = sum(row.arrivals for row in found)

    def mean(field: str) -> float:
        return sum(row.arrivals * float(getattr(row, field)) for row in found) / max(1, arrivals)

    return DemandObservation(
        model,
        arrivals,
        mean("prompt_tokens"),
        mean("uncached_tokens"),
        mean("uncached_sq"),
        mean("output_tokens"),
        mean("output_sq"),
        sum(row.waiting for row in found),
        sum(row.waiting_tokens for row in found),
        where,
    )
