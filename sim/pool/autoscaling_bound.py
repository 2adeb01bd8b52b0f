"""What any policy could save: a schedule made in full knowledge of the day, with the same delays and the same routing.

The day is played at every constant number of replicas, which tells how many promises each number breaks in each slice
of the day. Dynamic programming then finds the schedule with the fewest GPU seconds plus `price` times broken promises,
where a replica that comes up holds its GPUs for as long as it wakes. The price is tuned like every other policy's knob.
The schedule may break its promises where breaking them saves most, which no law of margins can; what it does not see is
that a replica comes up with an empty cache.
"""

import math
from collections.abc import Mapping, Sequence

from scheduler.core.autoscale.ladder import wake_s
from scheduler.core.autoscale.retire import retire_order
from scheduler.core.autoscale.state import ModelSpec, Observation, ReplicaObservation, Rung
from sim.pool.autoscaling_policies import Static
from sim.pool.autoscaling_scenario import Scenario, first_need, play

SLICE_S = 60.0
"""Length of a slice of the schedule: shorter than a wake, long enough for its promises to be its own."""
PATIENCE_S = 10.0
"""Seconds after which requests leave while constant replica counts are played, so that one overloaded hour does not
spoil the next."""

NEGLIGIBLE_SHARE = 0.005
"""Share of SLO violations at which no larger replica count is tried."""

ViolationTable = Sequence[Sequence[int]]
"""Promises broken in each slice of the day, by number of replicas; the first row is of one replica."""


def slices(violations: Sequence[float], day_s: float) -> list[int]:
    """Broken promises counted by the slice of the day in which their requests came."""
    counts = [0] * math.ceil(day_s / SLICE_S)
    for at in violations:
        counts[min(int(at / SLICE_S), len(counts) - 1)] += 1
    return counts


def schedule(table: ViolationTable, price_s: float, wake: float, start: int) -> list[int]:
    """Replicas that should serve in each slice: least `SLICE_S * N + wake * ups + price_s * broken promises`.

    `price_s` is what a broken promise may cost in replica seconds, `wake` how long one that comes up holds its GPUs,
    and `start` how many serve when the day begins. Exact, by dynamic programming over slices.
    """
    numbers = range(1, len(table) + 1)
    best = [wake * max(0, n - start) for n in numbers]
    came: list[list[int]] = []
    for index in range(len(table[0])):
        if index:
            best, steps = _step(best, wake)
            came.append(steps)
        best = [
            cost + SLICE_S * n + price_s * table[n - 1][index] for n, cost in zip(numbers, best, strict=True)
        ]
    return _backwards(best, came)


def _step(best: Sequence[float], wake: float) -> tuple[list[float], list[int]]:
    """Cheapest ways into each number from the slice before: down is free, up costs a wake each."""
    costs, steps = list(best), list(range(len(best)))
    for index in range(len(best) - 2, -1, -1):
        if costs[index + 1] < costs[index]:
            costs[index], steps[index] = costs[index + 1], steps[index + 1]
    for index in range(1, len(best)):
        if costs[index - 1] + wake < costs[index]:
            costs[index], steps[index] = costs[index - 1] + wake, steps[index - 1]
    return costs, steps


def shares(first: ViolationTable, second: ViolationTable, hosts: int) -> list[int]:
    """Hosts of `hosts` that the first of two models should have in each slice, the second having the rest.

    Fewest broken promises, by dynamic programming; a host that changes hands costs a promise, so that ties stay put.
    """
    numbers = range(1, hosts)
    best = [0.0 for _ in numbers]
    came: list[list[int]] = []
    for index in range(len(first[0])):
        if index:
            best, steps = _change_hands(best)
            came.append(steps)
        best = [
            cost + _violations(first, number, index) + _violations(second, hosts - number, index)
            for number, cost in zip(numbers, best, strict=True)
        ]
    return _backwards(best, came)


def _change_hands(best: Sequence[float]) -> tuple[list[float], list[int]]:
    costs: list[float] = []
    steps: list[int] = []
    for to in range(len(best)):
        cost, step = min((before + abs(place - to), place) for place, before in enumerate(best))
        costs.append(cost)
        steps.append(step)
    return costs, steps


def _violations(table: ViolationTable, number: int, index: int) -> int:
    return table[min(number, len(table)) - 1][index]


def _backwards(best: Sequence[float], came: Sequence[Sequence[int]]) -> list[int]:
    """The numbers of the cheapest way, found from its end."""
    path = [min(range(len(best)), key=best.__getitem__)]
    for steps in reversed(came):
        path.append(steps[path[-1]])
    return [index + 1 for index in reversed(path)]


class OraclePolicy:
    """A policy that follows numbers found for the day, waking each replica so that it serves in time."""

    name = "bound"

    def __init__(self, specs: Mapping[str, ModelSpec], numbers: Mapping[str, Sequence[int]]) -> None:
        """`numbers`: replicas that should serve in each slice, by model."""
        self._specs, self._numbers = specs, numbers

    def evaluate(self, seen: Observation) -> Mapping[str, Rung]:
        """Retire what the day needs no more, the coldest cache first; wake what it needs by the time it would serve."""
        rungs: dict[str, Rung] = {}
        free = {host.host_id: host.gpus for host in seen.hosts}
        lacking: list[tuple[ModelSpec, list[ReplicaObservation], int]] = []
        for model, spec in self._specs.items():
            mine = [replica for replica in seen.replicas if replica.model == model]
            awake = [replica for replica in mine if replica.rung is Rung.AWAKE]
            resting = [replica for replica in mine if replica.rung is not Rung.AWAKE]
            want = self._wanted(spec, resting, seen.now)
            gone = retire_order(awake, spec.capacity)[: max(0, len(awake) - want)]
            rest = min(spec.ladder, key=lambda rung: rung.depth)
            rungs |= {replica.replica_id: rest for replica in gone}
            for replica in awake:
                if replica.replica_id not in rungs:
                    free[replica.host_id] -= spec.capacity.gpus
            lacking.append((spec, resting, want - len(awake)))
        for spec, resting, count in lacking:
            rungs |= _woken(spec, resting, count, free)
        return rungs

    def _wanted(self, spec: ModelSpec, resting: Sequence[ReplicaObservation], now: float) -> int:
        """The most that any slice needs between now and when the quickest of those that rest would serve."""
        ahead = min((wake_s(spec, replica) for replica in resting), default=0.0)
        plan = self._numbers[spec.model]
        first, last = (min(int(at / SLICE_S), len(plan) - 1) for at in (now, now + ahead))
        return max(plan[first : last + 1])


def _woken(
    spec: ModelSpec, resting: Sequence[ReplicaObservation], count: int, free: dict[str, int]
) -> dict[str, Rung]:
    """The quickest `count` of those that rest where there is room, which is taken from `free`."""
    rungs: dict[str, Rung] = {}
    for replica in sorted(resting, key=lambda replica: (wake_s(spec, replica), replica.replica_id)):
        if len(rungs) < count and free[replica.host_id] >= spec.capacity.gpus:
            free[replica.host_id] -= spec.capacity.gpus
            rungs[replica.replica_id] = Rung.AWAKE
    return rungs


def oracle(scenario: Scenario, price_s: float, seed: int) -> OraclePolicy:
    """The bound for pools that hold GPUs only as long as they use them; `price_s` as in `schedule`."""
    numbers = {}
    for model, spec in scenario.specs.items():
        wake = spec.ladder[scenario.rest].wake_s
        numbers[model] = schedule(_table(scenario, model, seed), price_s, wake, first_need(scenario, model))
    return OraclePolicy(scenario.specs, numbers)


def shared_oracle(scenario: Scenario, seed: int) -> OraclePolicy:
    """The bound for contracted hosts that two models share, each host with one of them awake at a time."""
    one, other = scenario.specs
    hosts = len(scenario.hosts)
    numbers = shares(_table(scenario, one, seed), _table(scenario, other, seed), hosts)
    return OraclePolicy(scenario.specs, {one: numbers, other: [hosts - number for number in numbers]})


def _table(scenario: Scenario, model: str, seed: int) -> ViolationTable:
    """Promises broken in each slice of the day that belongs to `seed`, at every number up to where few are broken."""
    if (model, seed) not in scenario.tables:
        alone = scenario.alone(model)
        day = alone.arrivals(seed)
        rows: list[list[int]] = []
        while not rows or (sum(rows[-1]) > NEGLIGIBLE_SHARE * len(day) and len(rows) < len(alone.homes)):
            number = len(rows) + 1
            result = play(alone, Static(alone.specs, number), day, start=number, patience_s=PATIENCE_S)
            rows.append(slices([at for _, at in result.violations], scenario.day_s))
        scenario.tables[model, seed] = rows
    return scenario.tables[model, seed]
