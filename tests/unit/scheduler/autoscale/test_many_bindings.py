"""Of more bindings than are planned for, those with the most demand that can be met are."""

from collections.abc import Sequence

import msgspec
import pytest

from scheduler.core.autoscale.bound_demand import MAX_BINDINGS, BoundDemand
from scheduler.core.autoscale.model_planner import AutoscalerSettings
from scheduler.core.autoscale.state import (
    Binding,
    HostOption,
    Observation,
    ReplicaObservation,
    Rung,
)
from tests.unit.scheduler.autoscale.test_autoscaler import demand, spec

REGIONS = tuple(f"r{number:03}" for number in range(MAX_BINDINGS))
"""Where hosts may be created."""
EVERYWHERE = [Binding((region,)) for region in REGIONS]
MODEL = msgspec.structs.replace(spec(low=0), kinds=(HostOption("gpu-b300", 64.0, 1, REGIONS, "B300"),))
THERE = ReplicaObservation("elsewhere-0", "m", "elsewhere", Rung.AWAKE, region="elsewhere", gpu="h200")


class Demand:
    """The bound demand of the model, observed every two seconds."""

    def __init__(self) -> None:
        self.bound = BoundDemand(MODEL, AutoscalerSettings())
        self.now = 0.0

    def look(
        self, arrivals: dict[Binding, int], waiting: Sequence[Binding] = (), times: int = 1
    ) -> set[Binding]:
        """Requests that come before each of so many looks, and some that wait; returns what is planned for."""
        rows = [
            msgspec.structs.replace(demand("m", arrivals.get(where, 0), 5 * (where in waiting)), where=where)
            for where in (*arrivals, *waiting)
        ]
        for _ in range(times):
            self.now += 2.0
            self.bound.observe(Observation(self.now, [], [THERE], rows), rows, 2.0, [THERE])
        return {floor.where for floor in self.bound.floors(self.now)}


@pytest.mark.parametrize(
    "where",
    [Binding((), ("b300",)), Binding(("elsewhere",)), Binding(("elsewhere",), ("h200",))],
    ids=["a class", "a replica is there", "both"],
)
def test_another_place_with_more_demand_takes_the_one_with_the_least(where: Binding) -> None:
    seen = Demand()
    least = EVERYWHERE[17]
    few = {each: 1 if each == least else 2 for each in EVERYWHERE}
    assert seen.look(few, times=30) == set(EVERYWHERE)
    assert seen.look(few | {where: 6}, times=30) == {*EVERYWHERE, where} - {least}


def test_held_requests_are_demand() -> None:
    seen, where = Demand(), Binding(("elsewhere",))
    seen.look(dict.fromkeys(EVERYWHERE, 0), waiting=EVERYWHERE[1:])
    planned = seen.look(dict.fromkeys(EVERYWHERE[:1], 1), waiting=[*EVERYWHERE[1:], where])
    assert planned == {*EVERYWHERE[1:], where}


@pytest.mark.parametrize("nowhere", [Binding(("mars",)), Binding(("r000",), ("h200",))])
def test_what_cannot_be_met_takes_no_others_place(nowhere: Binding) -> None:
    seen = Demand()
    assert seen.look(dict.fromkeys(EVERYWHERE, 1) | {nowhere: 50}, times=30) == set(EVERYWHERE)


def test_a_set_of_regions_takes_no_place_of_a_single_one() -> None:
    seen, several = Demand(), Binding(REGIONS[:2])
    assert seen.look(dict.fromkeys(EVERYWHERE, 1) | {several: 50}, times=30) == set(EVERYWHERE)
    assert several in seen.look(dict.fromkeys(EVERYWHERE[:-1], 1) | {several: 50}, times=900)


def test_a_little_more_demand_changes_nothing() -> None:
    seen, where = Demand(), Binding((), ("b300",))
    even = dict.fromkeys(EVERYWHERE, 8)
    assert seen.look(even, times=30) == set(EVERYWHERE)
    assert seen.look(even | {where: 9}, times=60) == set(EVERYWHERE)


def test_the_choice_does_not_depend_on_the_order_of_what_is_seen() -> None:
    rows = dict.fromkeys([*EVERYWHERE, Binding((), ("b300",)), Binding(("elsewhere",))], 3)
    assert Demand().look(rows) == Demand().look(dict(reversed(rows.items())))


def test_demand_that_is_over_is_forgotten() -> None:
    seen = Demand()
    rows = dict.fromkeys([*EVERYWHERE, Binding((), ("b300",))], 1)
    assert len(seen.look(rows)) == MAX_BINDINGS
    assert seen.look({}, times=900) == set()
    assert not seen.bound._meters
