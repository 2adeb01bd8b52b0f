"""What scaling policies cost at equal service: days of load, each policy tuned to the same share of promises kept.

Every policy has one knob. It is found by bisection on days that are then left out (tuning seeds), so that each policy
keeps the same share of promises at the fewest GPU hours it can; the days compared are others.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from scheduler.core.autoscale.capacity import Load, Margins, needed
from scheduler.core.autoscale.forecast import Smoothing
from scheduler.core.autoscale.state import HostSeen, ModelSpec, Rung, RungFigures
from scheduler.core.autoscale.watch import Settings
from scheduler.simulator.autoscaling_load import (
    Arrival,
    Curve,
    Day,
    Lengths,
    arrivals,
    diurnal,
    evening,
    office,
    past,
)
from scheduler.simulator.autoscaling_policies import Hpa, Ours, Static, Wva
from scheduler.simulator.autoscaling_pool import DayPool, DayResult, Scaler, Slot
from scheduler.simulator.autoscaling_replica import FluidReplica
from scheduler.simulator.stats import Interval, interval

PAST_DAYS = 3
"""Days that the forecast has seen before the day that is played."""
TUNING_SEED = 1_000
STEPS = 5
"""Bisection steps on a knob."""
CURVES: dict[str, Curve] = {"diurnal": diurnal, "office": office, "flash": diurnal}
FLASH = 0.6
"""Height of the flash crowd in shares of the daily peak."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A pool and its days."""

    workload: str
    days: Mapping[str, tuple[Day, Lengths]]
    specs: Mapping[str, ModelSpec]
    hosts: Sequence[HostSeen]
    homes: Sequence[tuple[str, str]]
    """(model, host) of every replica that there may be."""
    rest: Rung
    """Where replicas rest."""

    @property
    def day_s(self) -> float:
        """Length of a day."""
        return next(iter(self.days.values()))[0].day_s

    def arrivals(self, seed: int) -> list[Arrival]:
        """The requests of a day."""
        return arrivals([(model, day, lengths) for model, (day, lengths) in self.days.items()], seed)


@dataclass(frozen=True, slots=True)
class Policy:
    """A scaling policy with its knob."""

    name: str
    make: Callable[[Scenario, float, int], Scaler]
    """From a knob and the day's seed (for what a pool remembers of the days before)."""
    generous: float
    """The knob at which it keeps most promises."""
    stingy: float
    whole: bool = False
    """Whether the knob is a whole number."""


@dataclass(slots=True)
class Outcome:
    """One policy on one workload."""

    policy: str
    workload: str
    knob: float
    days: list[DayResult] = field(default_factory=list)

    def over_days(self, figure: Callable[[DayResult], float]) -> Interval:
        """Mean of a figure over the days with its confidence interval."""
        return interval([figure(day) for day in self.days])


def single_model(
    workload: str,
    spec: ModelSpec,
    *,
    day_s: float,
    peak_rps: float,
    lengths: Lengths,
    replicas: int,
    wake_s: float,
) -> Scenario:
    """One model on hosts of its own that cost only while they are used."""
    ladder = {Rung.STOPPED: RungFigures(wake_s)}
    gpus = max(1, spec.capacity.gpus)
    mine = ModelSpec(spec.model, spec.capacity, spec.targets, ladder, 1, replicas)
    day = Day(CURVES[workload], peak_rps, day_s, flash=FLASH if workload == "flash" else 0.0)
    hosts = [HostSeen(f"host-{n:02}", gpus, 0.0, contracted=False, usd_per_hour=1.0) for n in range(replicas)]
    homes = [(spec.model, host.host_id) for host in hosts]
    return Scenario(workload, {spec.model: (day, lengths)}, {spec.model: mine}, hosts, homes, Rung.STOPPED)


def two_models(
    first: ModelSpec, second: ModelSpec, *, day_s: float, peak_rps: tuple[float, float], lengths: Lengths,
    hosts: int, wake_s: float,
) -> Scenario:  # fmt: skip
    """Two models with opposite days on contracted hosts: each host has both, one set awake at a time."""
    ladder = {Rung.SLEEP_1: RungFigures(wake_s, 1.0), Rung.STOPPED: RungFigures(wake_s)}
    gpus = max(first.capacity.gpus, second.capacity.gpus)
    seen = [HostSeen(f"host-{n:02}", gpus, 1e6, contracted=True) for n in range(hosts)]
    days = {
        first.model: (Day(office, peak_rps[0], day_s), lengths),
        second.model: (Day(evening, peak_rps[1], day_s), lengths),
    }
    specs: dict[str, ModelSpec] = {}
    homes: list[tuple[str, str]] = []
    for spec in (first, second):
        per_host = gpus // spec.capacity.gpus
        specs[spec.model] = ModelSpec(spec.model, spec.capacity, spec.targets, ladder, 1, hosts * per_host)
        homes += [(spec.model, host.host_id) for host in seen for _ in range(per_host)]
    return Scenario("antiphase", days, specs, seen, homes, Rung.SLEEP_1)


def play(scenario: Scenario, scaler: Scaler, day: Sequence[Arrival]) -> DayResult:
    """A day under a policy; every policy begins with what the first minutes need."""
    free = {host.host_id: host.gpus for host in scenario.hosts}
    slots: list[Slot] = []
    awake: dict[str, int] = {}
    for number, (model, host_id) in enumerate(scenario.homes):
        spec = scenario.specs[model]
        start = awake.get(model, 0) < _first_need(scenario, model) and free[host_id] >= spec.capacity.gpus
        if start:
            awake[model] = awake.get(model, 0) + 1
            free[host_id] -= spec.capacity.gpus
        rung = Rung.AWAKE if start else scenario.rest
        slots.append(Slot(f"{host_id}/{model}-{number}", spec, host_id, rung, FluidReplica(spec.capacity)))
    return DayPool(slots, scenario.hosts, scaler, scenario.day_s).play(day)


def _first_need(scenario: Scenario, model: str) -> int:
    day, lengths = scenario.days[model]
    rate = day.peak_rps * max(day.curve(place / 200.0) for place in range(5))
    spec = scenario.specs[model]
    load = Load(rate, lengths.prompt, lengths.prompt, lengths.output, lengths.prompt_cv**2)
    return max(spec.min_awake, needed(load, spec.capacity, spec.targets, at_most=spec.max_awake))


def ours(
    scenario: Scenario, knob: float, seed: int, *, forecasting: bool = True, name: str = "penstock"
) -> Ours:
    """Our autoscaler with `knob` as the share of promises that chance may break, and its memory of the days before."""
    smoothing = Smoothing(day_s=scenario.day_s)
    settings = Settings(Margins(misses=knob), smoothing, forecasting=forecasting)
    scaler = Ours(scenario.specs, settings, name)
    for model, (day, _) in scenario.days.items():
        for index, count in enumerate(past(day, PAST_DAYS, smoothing.bin_s, seed)):
            scaler.autoscaler.remember(model, count, ((index + 1) * smoothing.bin_s) % scenario.day_s)
    return scaler


POLICIES: dict[str, Policy] = {
    "static": Policy("static", lambda s, knob, _: Static(s.specs, round(knob)), 14, 1, whole=True),
    "hpa": Policy("hpa", lambda s, knob, _: Hpa(s.specs, knob), 0.5, 24.0),
    "wva": Policy("wva", lambda s, knob, _: Wva(s.specs, knob), 0.002, 1.0),
    "reactive": Policy(
        "reactive", lambda s, knob, seed: ours(s, knob, seed, forecasting=False, name="reactive"), 0.0005, 0.5
    ),
    "penstock": Policy("penstock", ours, 0.0005, 0.5),
}
"""`reactive` is ours without the forecast."""


def tune(scenario: Scenario, policy: Policy, target: float, days: Mapping[int, Sequence[Arrival]]) -> float:
    """The stingiest knob that keeps `target` of the promises on the tuning days, by bisection on a log scale.

    Attainment is taken to fall with the knob, which it does but for noise; where even the generous end does not reach
    the target, that end is returned.
    """

    def keeps(knob: float) -> bool:
        results = [play(scenario, policy.make(scenario, knob, seed), day) for seed, day in days.items()]
        return sum(result.attainment for result in results) / len(results) >= target

    good, bad = policy.generous, policy.stingy
    if policy.whole:
        while abs(good - bad) > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if keeps(middle) else (good, middle)
        return good
    for _ in range(STEPS):
        middle = math.sqrt(good * bad)
        good, bad = (middle, bad) if keeps(middle) else (good, middle)
    return good


def compare(
    scenario: Scenario,
    policies: Sequence[Policy],
    *,
    target: float,
    seeds: int,
    tuning_days: int = 2,
    on_progress: Callable[[str], None] = lambda words: None,
) -> list[Outcome]:
    """All policies on one scenario at equal service."""
    trial = {TUNING_SEED + n: scenario.arrivals(TUNING_SEED + n) for n in range(tuning_days)}
    outcomes = []
    for policy in policies:
        on_progress(f"{scenario.workload}: tuning {policy.name}")
        outcomes.append(Outcome(policy.name, scenario.workload, tune(scenario, policy, target, trial)))
    for seed in range(1, seeds + 1):
        day = scenario.arrivals(seed)
        for policy, outcome in zip(policies, outcomes, strict=True):
            on_progress(f"{scenario.workload}: {policy.name}, day {seed} of {seeds}")
            outcome.days.append(play(scenario, policy.make(scenario, outcome.knob, seed), day))
    return outcomes
