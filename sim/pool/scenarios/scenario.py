"""Defines a scenario: a small run that a known fault affects, and findings that detect the fault."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from sim.pool.cluster import Cluster
from sim.pool.contract import Record, Routing, RunResult, SimRequest
from sim.pool.pool import ReplicaSpec
from sim.pool.registry import Policy, Variant
from sim.pool.settings import RunConfig


@dataclass(frozen=True, slots=True)
class Finding:
    """One figure of a run and its limit."""

    what: str
    value: float
    limit: float
    unit: str = ""
    """Unit of the figure: `%` for shares (0 to 1), `s` for seconds, or empty for counts."""
    least: bool = False
    """Whether `limit` is a minimum; otherwise it is a maximum."""

    @property
    def ok(self) -> bool:
        """Whether the value is within its limit; NaN is not."""
        return self.value >= self.limit if self.least else self.value <= self.limit

    @property
    def figure(self) -> str:
        """The formatted value, such as `31 %`, `1.2 s` or `14`."""
        return format_value(self.value, self.unit)

    @property
    def bound(self) -> str:
        """The formatted limit, such as `at most 45 %`."""
        return f"{'at least' if self.least else 'at most'} {format_value(self.limit, self.unit)}"

    @property
    def text(self) -> str:
        """The finding as one sentence."""
        return f"{self.what}: {self.figure} ({self.bound})"


def at_most(what: str, value: float, limit: float, unit: str = "") -> Finding:
    """Return a finding with an upper limit."""
    return Finding(what, value, limit, unit)


def at_least(what: str, value: float, limit: float, unit: str = "") -> Finding:
    """Return a finding with a lower limit."""
    return Finding(what, value, limit, unit, least=True)


def format_value(value: float, unit: str) -> str:
    """Return the value with its unit, rounded to its significant digits."""
    if math.isinf(value):
        return "never"
    if unit == "%":
        return f"{100 * value:.0f} %"
    if unit == "s":
        return f"{value:.0f} s" if value >= 10 else f"{value:.2g} s"
    return f"{value:,.0f}"


@dataclass(frozen=True, slots=True)
class Setup:
    """The inputs of a run."""

    pool: Sequence[ReplicaSpec]
    requests: Sequence[SimRequest]
    config: RunConfig
    variant: Variant = field(default_factory=Variant)
    """Options of Penstock's scheduler; by default it refuses no request, as the published policies do."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """A completed run."""

    setup: Setup
    result: RunResult
    routing: Routing

    @property
    def answered(self) -> list[Record]:
        """Requests that received their answer."""
        return [record for record in self.result.records if record.finished_at >= 0]

    @property
    def unanswered(self) -> int:
        """Number of requests without an answer, for any reason."""
        return len(self.result.records) - len(self.answered)


def on_cluster(setup: Setup, policy: Policy) -> RunOutcome:
    """Run a setup on the simulated cluster."""
    config = replace(setup.config, network=policy.network(setup.config.network))
    cluster = Cluster(policy.make, setup.requests, setup.pool, config)
    cluster.run()
    return RunOutcome(setup, cluster.result("scenario", 1.0), cluster.routing)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named failure mode."""

    name: str
    source: str
    """Where the fault was reported, such as `ai-dynamo/dynamo #737`."""
    about: str
    """Description of the fault and of the simulated run."""
    setup: Callable[[int], Setup]
    """Builds the run's inputs from a seed."""
    check: Callable[[RunOutcome], list[Finding]]
    """Computes the findings of a run; they are always the same figures in the same order."""
    must_fail: tuple[str, ...] = ()
    """Policies that must fail the scenario: at least one of their findings must be outside its limit."""
    play: Callable[[Setup, Policy], RunOutcome] = on_cluster

    def findings(self, policy: Policy, seed: int) -> list[Finding]:
        """Run the scenario with one seed and return its findings."""
        return self.check(self.play(self.setup(seed), policy))


def worst(runs: Iterable[Sequence[Finding]]) -> list[Finding]:
    """Return each figure of several seeds' findings at its worst value."""

    def goodness(finding: Finding) -> float:
        """Return a sort key that is smaller for worse findings; NaN is the worst."""
        if math.isnan(finding.value):
            return -math.inf
        return finding.value if finding.least else -finding.value

    return [min(same, key=goodness) for same in zip(*runs, strict=True)]
