"""Compares what scaling policies cost at equal service: days of load, each policy tuned to the same SLO
attainment.

Every policy has one knob. It is found by bisection on tuning days (tuning seeds), which are then left out, so
that each policy reaches the same SLO attainment with the fewest GPU hours it can. The days compared are others.
Only the static peak is tuned on the compared days themselves: a replica count that suffices for the tuning days
may be too small for the compared ones, and the policies would no longer offer equal service.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from scheduler.core.autoscale.capacity import DEFAULT_MARGINS, Margins
from scheduler.core.autoscale.model_planner import AutoscalerSettings
from sim.pool.autoscaling_bound import oracle, shared_oracle
from sim.pool.autoscaling_load import Arrival
from sim.pool.autoscaling_policies import Hpa, PenstockScaler, Static, Wva
from sim.pool.autoscaling_pool import Scaler
from sim.pool.autoscaling_result import DayResult
from sim.pool.autoscaling_scenario import ANTIPHASE, Scenario, play
from sim.pool.stats import Interval, interval

TUNING_SEED = 1_000
"""Seed of the first tuning day."""
STEPS = 5
"""Number of bisection steps when a knob is tuned."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A scaling policy with its knob."""

    name: str
    make: Callable[[Scenario, float, int], Scaler]
    """Builds the scaler from the scenario, a knob and the day's seed, which the bound needs."""
    loosest_knob: float
    """The knob value at which the policy meets the SLO most often."""
    tightest_knob: float
    whole: bool = False
    """Whether the knob is a whole number."""
    within: Callable[[Scenario, float], Scenario] = lambda scenario, _: scenario
    """Returns the scenario for a knob; where the knob is a number of hosts, the scenario with that many hosts."""
    hindsight: bool = False
    """Whether the knob is tuned on the same days that are compared."""

    def play(self, scenario: Scenario, knob: float, seed: int, day: Sequence[Arrival]) -> DayResult:
        """Simulate one day of arrivals with this knob."""
        found = self.within(scenario, knob)
        return play(found, self.make(found, knob, seed), day)


@dataclass(slots=True)
class Outcome:
    """The results of one policy on one workload."""

    policy: str
    workload: str
    knob: float
    days: list[DayResult] = field(default_factory=list)

    def over_days(self, figure: Callable[[DayResult], float]) -> Interval:
        """Mean of a figure over the days with its confidence interval."""
        return interval([figure(day) for day in self.days])


def penstock_scaler(scenario: Scenario, knob: float) -> PenstockScaler:
    """Return Penstock's autoscaler; `knob` is its tolerated share of SLO violations."""
    return PenstockScaler(scenario.specs, AutoscalerSettings(Margins(misses=knob)))


POLICIES: dict[str, Policy] = {
    "static": Policy(
        "static", lambda s, knob, _: Static(s.specs, round(knob)), 14, 1, whole=True, hindsight=True
    ),
    "hpa": Policy("hpa", lambda s, knob, _: Hpa(s.specs, knob), 0.5, 24.0),
    "wva": Policy("wva", lambda s, knob, _: Wva(s.specs, knob), 0.002, 1.0),
    "penstock": Policy("penstock", lambda s, knob, _: penstock_scaler(s, knob), 0.0005, 0.5),
    "bound": Policy("bound", oracle, 1_000.0, 3.0),
}
"""Scaling policies by name; `bound` knows the whole day in advance."""

SHARED: dict[str, Policy] = {
    "static": Policy(
        "static",
        lambda s, _, __: Static(s.specs, max(spec.max_awake for spec in s.specs.values())),
        24, 2, whole=True, within=lambda s, hosts: s.parted(round(hosts)), hindsight=True,
    ),
    "penstock": Policy(
        "penstock",
        lambda s, _, __: penstock_scaler(s, DEFAULT_MARGINS.misses),
        24, 2, whole=True, within=lambda s, hosts: s.on(round(hosts)),
    ),
    "bound": Policy(
        "bound", lambda s, _, seed: shared_oracle(s, seed),
        24, 2, whole=True, within=lambda s, hosts: s.on(round(hosts)),
    ),
}  # fmt: skip
"""Policies by name for contracted hosts that two models share.

The knob is the number of hosts, which are paid for at all times. `static` divides the hosts between the models.
The competitors do not model hosts and are left out.
"""


def policies_for(workload: str) -> Mapping[str, Policy]:
    """Return the policies that can run a workload, by name."""
    return SHARED if workload == ANTIPHASE else POLICIES


def tune(scenario: Scenario, policy: Policy, target: float, days: Mapping[int, Sequence[Arrival]]) -> float:
    """Return the cheapest knob that reaches the attainment `target` (0 to 1) on the tuning days, by bisection
    on a log scale.

    Attainment is assumed to fall from the loosest to the tightest knob, apart from noise. Where even the loosest
    knob misses the target, that knob is returned.
    """

    def keeps(knob: float) -> bool:
        results = [policy.play(scenario, knob, seed, day) for seed, day in days.items()]
        return sum(result.worst_attainment for result in results) / len(results) >= target

    good, bad = policy.loosest_knob, policy.tightest_knob
    if policy.whole:
        good = min(good, len(scenario.hosts))
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
    """Run all policies on one scenario at equal service."""
    trial = {TUNING_SEED + n: scenario.arrivals(TUNING_SEED + n) for n in range(tuning_days)}
    days = {seed: scenario.arrivals(seed) for seed in range(1, seeds + 1)}
    outcomes = []
    for policy in policies:
        on_progress(f"{scenario.workload}: tuning {policy.name}")
        knob = tune(scenario, policy, target, days if policy.hindsight else trial)
        outcomes.append(Outcome(policy.name, scenario.workload, knob))
    for seed, day in days.items():
        for policy, outcome in zip(policies, outcomes, strict=True):
            on_progress(f"{scenario.workload}: {policy.name}, day {seed} of {seeds}")
            outcome.days.append(policy.play(scenario, outcome.knob, seed, day))
    return outcomes
