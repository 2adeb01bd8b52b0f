"""All routing policies by name: Penstock's, its variants, and published ones."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from core.errors import InvalidRequest
from scheduler.core.rules import SchedulerConfig, fifo, plain_vtc
from sim.pool.ablation import MECHANISMS
from sim.pool.baselines.base import Baseline
from sim.pool.baselines.cache_aware import CacheAware, SmallestTree, VllmRouter
from sim.pool.baselines.classic import LeastRequest, PowerOfTwo, Random, RoundRobin, SessionHash
from sim.pool.baselines.dynamo import Dynamo, LMetric, QueuedDynamo
from sim.pool.baselines.llmd import Blend, FlowControl, Sticky
from sim.pool.baselines.llmd_latency import PredictedLatency
from sim.pool.baselines.loadaware import LoadAware
from sim.pool.factorial import CROSSES, crossed
from sim.pool.network import Network
from sim.pool.penstock_routing import PenstockOptions, PenstockRouting
from sim.pool.settings import RoutingFactory, RoutingSetup
from sim.pool.shed import SheddingPolicy

OURS = "penstock"
"""Name of Penstock's policy."""
WHOLE = "penstock_whole"
"""Ours with every replica as one target: an engine with ranks chooses the rank itself."""
STRONGEST = Sticky.name
"""Name of the published policy that defines load 1.0."""
PREFIX_KINDS = ("mirrored", "exact")
"""Kinds of prefix knowledge; the first is the default."""
_LLMD_SCRAPE_S = 0.05
"""Seconds between two refreshes of metrics by llm-d's endpoint picker (`--refresh-metrics-interval`)."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Options of a run of `penstock`."""

    prefix: str = PREFIX_KINDS[0]
    """Prefix knowledge of the plain name; `penstock_exact` and `penstock_mirrored` state it in the name."""
    admission: bool = False
    """Whether requests are refused by prediction; only where shed rates are held equal."""
    deadline_s: float = 600.0
    """Maximum seconds that a request may wait."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy of the comparison."""

    name: str
    make: RoutingFactory
    metrics_every_s: float | None = None
    """The policy's own scrape interval in seconds; None = the run's."""

    def network(self, network: Network) -> Network:
        """Return the run's network with this policy's scrape interval."""
        return (
            network
            if self.metrics_every_s is None
            else replace(network, metrics_every_s=self.metrics_every_s)
        )


RIVALS: Mapping[str, type[Baseline]] = {
    kind.name: kind
    for kind in (Sticky, FlowControl, PredictedLatency, VllmRouter, CacheAware, Dynamo, QueuedDynamo)
}
"""Published policies at their present release, by name."""
OLDER: Mapping[str, type[Baseline]] = {
    kind.name: kind
    for kind in (
        Random, RoundRobin, LeastRequest, PowerOfTwo, SessionHash, SmallestTree, LoadAware, LMetric, Blend,
    )
}  # fmt: skip
"""Load balancers, and published policies that their projects have replaced."""
BASELINES: Mapping[str, type[Baseline]] = {**RIVALS, **OLDER}

_QUEUES: Mapping[str, Callable[[], SchedulerConfig]] = {"fifo": fifo, "vtc": plain_vtc}
"""Penstock's placement with other queues, for the fairness table."""
_CROSSED: Mapping[str, RoutingFactory] = crossed()
ABLATED = tuple(f"{OURS}-{mechanism}" for mechanism in MECHANISMS)
"""Penstock's policy without one of its mechanisms each."""
NAMES = (OURS, "penstock_exact", "penstock_mirrored", WHOLE, *_QUEUES, *BASELINES, *_CROSSED, *ABLATED)
GROUPS: Mapping[str, tuple[str, ...]] = {
    "present": (OURS, "penstock_exact", *RIVALS),
    "older": tuple(OLDER),
    "factorial": tuple(cross.policy for cross in CROSSES),
    "ablation": (OURS, "penstock_exact", *ABLATED),
}
"""Names for several policies together."""


def names_of(text: str, prefix: str = PREFIX_KINDS[0]) -> list[str]:
    """Return the policies of a comma-separated list, which may name GROUPS; `all` = the present and the older policies
    and Penstock's queues, with Penstock's own under one name only.

    Raises InvalidRequest for a name that does not exist.
    """
    if text.strip() == "all":
        every = (OURS, "penstock_exact", "penstock_mirrored", *_QUEUES, *BASELINES)
        return [name for name in every if name != f"{OURS}_{prefix}"]
    words = [word.strip() for word in text.split(",") if word.strip()]
    names = list(dict.fromkeys(name for word in words for name in GROUPS.get(word, (word,))))
    if not names:
        raise InvalidRequest("no policy is named", param="policies")
    for name in names:
        if name not in NAMES:
            raise InvalidRequest(
                f"no policy is called {name!r}; policies: all, {', '.join((*GROUPS, *NAMES))}",
                param="policies",
            )
    return names


def policy(name: str, variant: Variant | None = None, *, shed_rate: float = 0.0) -> Policy:
    """Return the policy of that name; `shed_rate` (0 to 1) adds a gate to a published one that refuses this
    share.

    Raises InvalidRequest for a name that does not exist.
    """
    if name in BASELINES:
        every_s = _LLMD_SCRAPE_S if name.startswith("llmd_") else None
        return Policy(name, _baseline(BASELINES[name], shed_rate), every_s)
    if name in _CROSSED:
        every_s = _LLMD_SCRAPE_S if name.startswith("llmd_") else None
        return Policy(name, _CROSSED[name], every_s)
    return Policy(name, _ours(name, variant or Variant()))


def _baseline(kind: type[Baseline], shed_rate: float) -> RoutingFactory:
    def make(setup: RoutingSetup) -> Baseline | SheddingPolicy:
        made = kind(setup.rng)
        return SheddingPolicy(made, shed_rate) if shed_rate > 0.0 else made

    return make


def options_of(name: str, variant: Variant) -> PenstockOptions:
    """Return the options of Penstock's policy of that name."""
    state = _QUEUES[name]() if name in _QUEUES else SchedulerConfig()
    if name in ABLATED:
        state = MECHANISMS[name.removeprefix(f"{OURS}-")].without(state)
    admission = variant.admission and name not in _QUEUES
    return PenstockOptions(
        exact=_prefix_of(name, variant) == "exact",
        deadline_s=variant.deadline_s,
        state=replace(state, admission=replace(state.admission, enabled=admission)),
        name=name,
        by_rank=name != WHOLE,
    )


def _ours(name: str, variant: Variant) -> RoutingFactory:
    options = options_of(name, variant)
    return lambda setup: PenstockRouting(setup, options)


def _prefix_of(name: str, variant: Variant) -> str:
    kind = name.removeprefix(f"{OURS}_")
    return kind if kind in PREFIX_KINDS else variant.prefix


def checked_prefix(text: str) -> str:
    """Return the kind of prefix knowledge that `text` names. Raises InvalidRequest for any other text."""
    if text not in PREFIX_KINDS:
        raise InvalidRequest(
            f"prefix knowledge is one of {', '.join(PREFIX_KINDS)}, not {text!r}", param="prefix"
        )
    return text
