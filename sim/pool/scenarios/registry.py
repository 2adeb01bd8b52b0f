"""All scenarios by name, and the verdict on a policy over several seeds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from core.errors import InvalidRequest
from sim.pool.registry import OURS
from sim.pool.scenarios.failures import FAILURES
from sim.pool.scenarios.overload import OVERLOAD
from sim.pool.scenarios.routing import ROUTING
from sim.pool.scenarios.scenario import Finding, Scenario, worst
from sim.pool.scenarios.shipped import policy_of

SCENARIOS: Mapping[str, Scenario] = {each.name: each for each in (*ROUTING, *FAILURES, *OVERLOAD)}
SEEDS = (1, 2, 3)
"""Seeds with which every scenario runs."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a policy in a scenario, over all seeds."""

    scenario: Scenario
    policy: str
    findings: Sequence[Finding]
    """Each finding, with its worst value over the seeds."""

    @property
    def ok(self) -> bool:
        """Whether every finding is within its limit for every seed."""
        return all(finding.ok for finding in self.findings)


def scenario(name: str) -> Scenario:
    """Return the scenario of that name. Raises InvalidRequest listing the known names."""
    if name not in SCENARIOS:
        raise InvalidRequest(
            f"no scenario is called {name!r}; scenarios: {', '.join(SCENARIOS)}", param="scenario"
        )
    return SCENARIOS[name]


def judge(
    played: Scenario,
    policy: str = OURS,
    seeds: Sequence[int] = SEEDS,
    *,
    tick: Callable[[], None] = lambda: None,
) -> Verdict:
    """Run the scenario with each seed and call `tick` after every run.

    Raises InvalidRequest for a policy that does not exist.
    """
    runs = []
    for seed in seeds:
        runs.append(played.findings(policy_of(policy, played.setup(seed).variant), seed))
        tick()
    return Verdict(played, policy, worst(runs))
