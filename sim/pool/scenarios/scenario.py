"""What a scenario is: a small run that a known fault would spoil, and findings that say whether it did."""

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
    """One figure of a run and what it may be."""

    what: str
    value: float
    limit: float
    unit: str = ""
    """`%` for shares (0 to 1), `s`, or empty for counts."""
    least: bool = False
    """Whether `limit` is the least it must be; otherwise the most."""

    @property
    def ok(self) -> bool:
        """Whether it is as it must be; a figure that is not a number is not."""
        return self.value >= self.limit if self.least else self.value <= self.limit

    @property
    def figure(self) -> str:
        """The value as it is read: `31 %`, `1.2 s`, `14`."""
        return format_value(self.value, self.unit)

    @property
    def bound(self) -> str:
        """What it may be: `at most 45 %`."""
        return f"{'at least' if self.least else 'at most'} {format_value(self.limit, self.unit)}"

    @property
    def text(self) -> str:
        """All of it in a sentence."""
        return f"{self.what}: {self.figure} ({self.bound})"


def at_most(what: str, value: float, limit: float, unit: str = "") -> Finding:
    """A figure that must not be larger."""
    return Finding(what, value, limit, unit)


def at_least(what: str, value: float, limit: float, unit: str = "") -> Finding:
    """A figure that must not be smaller."""
    return Finding(what, value, limit, unit, least=True)


def format_value(value: float, unit: str) -> str:
    """A figure for people, rounded to what can be told apart."""
    if math.isinf(value):
        return "never"
    if unit == "%":
        return f"{100 * value:.0f} %"
    if unit == "s":
        return f"{value:.0f} s" if value >= 10 else f"{value:.2g} s"
    return f"{value:,.0f}"


@dataclass(frozen=True, slots=True)
class Setup:
    """What a run is made of."""

    pool: Sequence[ReplicaSpec]
    requests: Sequence[SimRequest]
    config: RunConfig
    variant: Variant = field(default_factory=Variant)
    """How ours is set; by default it refuses no request, as the published policies."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """A run that is over."""

    setup: Setup
    result: RunResult
    routing: Routing

    @property
    def answered(self) -> list[Record]:
        """Requests that got their answer."""
        return [record for record in self.result.records if record.finished_at >= 0]

    @property
    def unanswered(self) -> int:
        """Requests that ended in anything else, whatever the reason."""
        return len(self.result.records) - len(self.answered)


def on_cluster(setup: Setup, policy: Policy) -> RunOutcome:
    """Play a setup on the simulated cluster."""
    config = replace(setup.config, network=policy.network(setup.config.network))
    cluster = Cluster(policy.make, setup.requests, setup.pool, config)
    cluster.run()
    return RunOutcome(setup, cluster.result("scenario", 1.0), cluster.routing)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named failure mode."""

    name: str
    source: str
    """Where it happened, e.g. `ai-dynamo/dynamo #737`."""
    about: str
    """What happened there, and what is played here."""
    setup: Callable[[int], Setup]
    """Of a seed."""
    check: Callable[[RunOutcome], list[Finding]]
    """Always the same findings in the same order."""
    must_fail: tuple[str, ...] = ()
    """Policies that must fail the scenario: at least one of their findings is not ok."""
    play: Callable[[Setup, Policy], RunOutcome] = on_cluster

    def findings(self, policy: Policy, seed: int) -> list[Finding]:
        """Play it with one seed."""
        return self.check(self.play(self.setup(seed), policy))


def worst(runs: Iterable[Sequence[Finding]]) -> list[Finding]:
    """Of several seeds' findings, each figure where it was furthest on the wrong side."""

    def goodness(finding: Finding) -> float:
        """Smaller is worse; a figure that is not a number is worst."""
        if math.isnan(finding.value):
            return -math.inf
        return finding.value if finding.least else -finding.value

    return [min(same, key=goodness) for same in zip(*runs, strict=True)]
