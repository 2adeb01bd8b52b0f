"""All routing policies by name: ours, its variants, and what others have published."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from core.errors import InvalidRequest
from scheduler.core.rules import AdmissionRules, SchedulerConfig, fifo, plain_vtc
from sim.pool.baselines.base import Baseline
from sim.pool.baselines.cache_aware import CacheAware
from sim.pool.baselines.classic import LeastRequest, PowerOfTwo, Random, RoundRobin, SessionHash
from sim.pool.baselines.dynamo import Dynamo, LMetric
from sim.pool.baselines.llmd import Blend, Sticky
from sim.pool.baselines.loadaware import LoadAware
from sim.pool.network import Network
from sim.pool.penstock_routing import PenstockOptions, PenstockRouting
from sim.pool.settings import RoutingFactory, RoutingSetup
from sim.pool.shed import SheddingPolicy

OURS = "penstock"
STRONGEST = Sticky.name
"""The published policy that loads are measured by."""
PREFIX_KINDS = ("mirrored", "exact")
_LLMD_SCRAPE_S = 0.05
"""llm-d's endpoint picker refreshes metrics every 50 ms (`--refresh-metrics-interval`)."""


@dataclass(frozen=True, slots=True)
class Variant:
    """How a run of `penstock` is set."""

    prefix: str = PREFIX_KINDS[0]
    """Of the plain name; `penstock_exact` and `penstock_mirrored` say it themselves."""
    admission: bool = False
    """Whether requests are refused by prediction: only where shed rates are held equal."""
    deadline_s: float = 600.0
    """How long a request may wait."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One entry of the comparison."""

    name: str
    make: RoutingFactory
    metrics_every_s: float | None = None
    """Its own scrape interval where it is deployed with another one than the run's."""

    def network(self, network: Network) -> Network:
        """The run's network as this policy is deployed in it."""
        return (
            network
            if self.metrics_every_s is None
            else replace(network, metrics_every_s=self.metrics_every_s)
        )


BASELINES: Mapping[str, type[Baseline]] = {
    kind.name: kind
    for kind in (
        Random, RoundRobin, LeastRequest, PowerOfTwo, SessionHash, CacheAware, LoadAware, Dynamo, LMetric,
        Blend, Sticky,
    )
}  # fmt: skip

_QUEUES: Mapping[str, Callable[[], SchedulerConfig]] = {"fifo": fifo, "vtc": plain_vtc}
"""Our placement behind another queue, for the fairness table."""
NAMES = (OURS, "penstock_exact", "penstock_mirrored", *_QUEUES, *BASELINES)


def names_of(text: str, prefix: str = PREFIX_KINDS[0]) -> list[str]:
    """Policies of a comma-separated list; `all` = everything, without ours a second time under its other name.

    Raises InvalidRequest for a name that does not exist.
    """
    if text.strip() == "all":
        return [name for name in NAMES if name != f"{OURS}_{prefix}"]
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise InvalidRequest("no policy is named", param="policies")
    for name in names:
        if name not in NAMES:
            raise InvalidRequest(
                f"no policy is called {name!r}; policies: all, {', '.join(NAMES)}", param="policies"
            )
    return names


def policy(name: str, variant: Variant | None = None, *, shed_rate: float = 0.0) -> Policy:
    """The policy of that name. `shed_rate` puts a published one behind a gate that refuses such a share."""
    if name in BASELINES:
        every_s = _LLMD_SCRAPE_S if name.startswith("llmd_") else None
        return Policy(name, _baseline(BASELINES[name], shed_rate), every_s)
    return Policy(name, _ours(name, variant or Variant()))


def _baseline(kind: type[Baseline], shed_rate: float) -> RoutingFactory:
    def make(setup: RoutingSetup) -> Baseline | SheddingPolicy:
        made = kind(setup.rng)
        return SheddingPolicy(made, shed_rate) if shed_rate > 0.0 else made

    return make


def _ours(name: str, variant: Variant) -> RoutingFactory:
    state = _QUEUES[name]() if name in _QUEUES else SchedulerConfig()
    admission = variant.admission and name not in _QUEUES
    options = PenstockOptions(
        exact=_prefix_of(name, variant) == "exact",
        deadline_s=variant.deadline_s,
        state=replace(state, admission=replace(AdmissionRules(), enabled=admission)),
        name=name,
    )
    return lambda setup: PenstockRouting(setup, options)


def _prefix_of(name: str, variant: Variant) -> str:
    kind = name.removeprefix(f"{OURS}_")
    return kind if kind in PREFIX_KINDS else variant.prefix


def checked_prefix(text: str) -> str:
    """The kind of prefix knowledge that `text` names. Raises InvalidRequest."""
    if text not in PREFIX_KINDS:
        raise InvalidRequest(
            f"prefix knowledge is one of {', '.join(PREFIX_KINDS)}, not {text!r}", param="prefix"
        )
    return text
