"""Computes what any policy could save: a schedule with full knowledge of the day, under the same delays and
routing.

The day is simulated at every constant number of replicas, which gives the SLO violations of each number in each
slice of the day. Dynamic programming then finds the schedule that minimises GPU seconds plus `price` times
violations, where a waking replica holds its GPUs for its wake time. The price is tuned like every other
policy's knob. The schedule may accept violations where that saves most. It ignores that a woken replica starts
with an empty cache.
"""

import math
from collections.abc import Mapping, Sequence

from scheduler.core.autoscale.ladder import wake_s
from scheduler.core.autoscale.retire import retire_order
from scheduler.core.autoscale.state import ModelSpec, Observation, ReplicaObservation, Rung
from sim.pool.autoscaling_policies import Static
from sim.pool.autoscaling_scenario import Scenario, first_need, play

SLICE_S = 60.0
"""Length of a slice of the schedule in seconds: shorter than a wake, long enough to attribute violations to one
slice.
"""
PATIENCE_S = 10.0
"""Queue timeout in seconds while constant replica counts are simulated, so that one overloaded hour does not
affect the next.
"""

NEGLIGIBLE_SHARE = 0.005
"""Share of SLO violations (0 to 1) at or below which no larger replica count is tried."""

ViolationTable = Sequence[Sequence[int]]
"""SLO violations in each slice of the day, by number of replicas; the first row is for one replica."""


def slices(violations: Sequence[float], day_s: float) -> list[int]:
    """Count SLO violations by the slice of the day in which their requests arrived; times and `day_s` are in
    seconds.
    """
    counts = [0] * math.ceil(day_s / SLICE_S)
    for at in violations:
        counts[min(int(at / SLICE_S), len(counts) - 1)] += 1
    return counts


def schedule(table: ViolationTable, price_s: float, wake: float, start: int) -> list[int]:
    """Return the replicas for each slice that minimise `SLICE_S * N + wake * ups + price_s * violations`.

    `price_s` is the cost of one violation in replica seconds, `wake` the seconds for which a waking replica
    holds its GPUs without serving, and `start` the number of replicas at the start of the day. The result is
    exact, by dynamic programming over slices.
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
    """Return the lowest cost of each replica count and its predecessor: scaling down is free, each wake costs
    `wake`.
    """
    costs, steps = list(best), list(range(len(best)))
    for index in range(len(best) - 2, -1, -1):
        if costs[index + 1] < costs[index]:
            costs[index], steps[index] = costs[index + 1], steps[index + 1]
    for index in range(1, len(best)):
        if costs[index - 1] + wake < costs[index]:
            costs[index], steps[index] = costs[index - 1] + wake, steps[index - 1]
    return costs, steps


def shares(first: ViolationTable, second: ViolationTable, hosts: int) -> list[int]:
    """Return how many of `hosts` the first of two models gets in each slice; the second model gets the rest.

    Dynamic programming minimises SLO violations. Moving a host between models costs as much as one violation,
    which keeps the assignment stable on ties.
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
    """Trace the cheapest schedule back from its last slice."""
    path = [min(range(len(best)), key=best.__getitem__)]
    for steps in reversed(came):
        path.append(steps[path[-1]])
    return [index + 1 for index in reversed(path)]


class OraclePolicy:
    """A policy that follows replica counts computed for the day and wakes each replica early enough to serve on
    time.
    """

    name = "bound"

    def __init__(self, specs: Mapping[str, ModelSpec], numbers: Mapping[str, Sequence[int]]) -> None:
        """`numbers` holds, for each model, the replicas that should serve in each slice."""
        self._specs, self._numbers = specs, numbers

    def evaluate(self, seen: Observation) -> Mapping[str, Rung]:
        """Retire surplus replicas, coldest cache first, and wake those that are needed by the time they would
        serve.
        """
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
        """Return the largest count of any slice between `now` and the time at which the fastest resting replica
        would serve.
        """
        ahead = min((wake_s(spec, replica) for replica in resting), default=0.0)
        plan = self._numbers[spec.model]
        first, last = (min(int(at / SLICE_S), len(plan) - 1) for at in (now, now + ahead))
        return max(plan[first : last + 1])


def _woken(
    spec: ModelSpec, resting: Sequence[ReplicaObservation], count: int, free: dict[str, int]
) -> dict[str, Rung]:
    """Wake the `count` resting replicas with the shortest wake time that fit, and subtract their GPUs from `free`."""
    rungs: dict[str, Rung] = {}
    for replica in sorted(resting, key=lambda replica: (wake_s(spec, replica), replica.replica_id)):
        if len(rungs) < count and free[replica.host_id] >= spec.capacity.gpus:
            free[replica.host_id] -= spec.capacity.gpus
            rungs[replica.replica_id] = Rung.AWAKE
    return rungs


def oracle(scenario: Scenario, price_s: float, seed: int) -> OraclePolicy:
    """Return the bound for pools that pay for GPUs only while they use them; `price_s` is as in `schedule`."""
    numbers = {}
    for model, spec in scenario.specs.items():
        wake = spec.ladder[scenario.rest].wake_s
        numbers[model] = schedule(_table(scenario, model, seed), price_s, wake, first_need(scenario, model))
    return OraclePolicy(scenario.specs, numbers)


def shared_oracle(scenario: Scenario, seed: int) -> OraclePolicy:
    """Return the bound for contracted hosts that two models share, where each host has one model awake at a time."""
    one, other = scenario.specs
    hosts = len(scenario.hosts)
    numbers = shares(_table(scenario, one, seed), _table(scenario, other, seed), hosts)
    return OraclePolicy(scenario.specs, {one: numbers, other: [hosts - number for number in numbers]})


def _table(scenario: Scenario, model: str, seed: int) -> ViolationTable:
    """Return the violations in each slice of the day of `seed`, for every replica count until violations are
    negligible.
    """
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
