"""Every tunable of the fair queue and of admission. The live service uses the defaults.

The simulator also runs the variants `fifo` and `plain_vtc`.
"""

from dataclasses import dataclass, field

from scheduler.core.config import PolicyConfig
from scheduler.wire import PlaceRequest

BANDS = ("priority", "standard", "batch")
"""Strict bands, first served first. An unknown tier counts as standard."""
_INDEX = {tier: index for index, tier in enumerate(BANDS)}
NEW_TENANT = ""
"""Tenant id that stands for a new tenant: its counter is where new tenants start."""


def band_index(tier: str) -> int:
    """The index of a tier's band, 0 = served first. An unknown tier is standard."""
    return _INDEX.get(tier, _INDEX["standard"])


@dataclass(frozen=True, kw_only=True)
class QueueRules:
    """How one model's queue orders its requests. Counters are in weighted tokens (see `charge`)."""

    fair: bool = True
    """False = first come first served inside a band, whatever the tenant."""
    input_weight: float = 1.0
    """w_p: the charge of an uncached input token (Sheng et al., OSDI'24)."""
    output_weight: float = 2.0
    """w_q: the charge of an output token."""
    slack: float = 20_000.0
    """Q, in weighted tokens: only tenants this close to the smallest counter may pass a request that fits nowhere."""
    reorder_window: int = 32
    """Requests of the first tenant that are compared by cached prefix when its next one is mostly uncached. The
    longest cached prefix goes first. 1 = no comparison."""
    max_overtaken: int = 24
    """Later requests of its tenant that may go before a request because of their cached prefix; then it goes first."""
    kv_share: float = 0.5
    """Share of the pool's KV cache that one tenant's running requests may reserve while other tenants of its band
    wait. The cap is never below the tenant's share by weight. 1 = no cap."""
    late_ttft_share: float = 0.7
    """A request that waited this share of its model's TTFT target is late; the rest is the time that the replica
    needs."""
    oldest_every: int = 16
    """While the band's queue keeps growing, requests that can still meet the TTFT target go before late ones of their
    tenant, because some are late in any order; every `oldest_every`-th pick goes to the oldest, so that none starves.
    1 = first come first served."""
    max_skips: int = 3
    """Requests that fit nowhere and may be passed in one pass over the queue."""
    max_passed: int = 64
    """Requests that may be placed before one that fits nowhere, and as much work as its own; then the others wait for
    it (see `hold.Hold`)."""
    hold_s: float = 30.0
    """Longest time for which others wait for one that fits nowhere, in seconds. An answer of a thousand tokens ends
    within it; whatever still runs then came from a higher band or is not worth waiting for."""
    max_idle_flows: int = 4096
    """Counters of idle tenants that are kept in each band."""
    max_waiting: int = 16_384
    """Requests that may wait for one model."""
    max_waiting_share: float = 0.5
    """Share of `max_waiting` that one tenant may fill while other tenants wait."""

    def work(self, request: PlaceRequest) -> float:
        """Weighted tokens that a request asks for, as known on arrival, as if nothing were cached."""
        return self.input_weight * request.prompt_tokens + self.output_weight * request.output_tokens

    def charge(self, uncached: int, output: int, weight: float) -> float:
        """The charge of `uncached` input and `output` tokens for a tenant of this weight, in weighted tokens."""
        return (self.input_weight * uncached + self.output_weight * output) / weight

    def flow_of(self, tenant_id: str) -> str:
        """The name of the flow for a tenant's requests: the tenant id, or one flow for all tenants when not `fair`."""
        return tenant_id if self.fair else ""


@dataclass(frozen=True, kw_only=True)
class AdmissionRules:
    """When a request is refused because its predicted wait exceeds its deadline."""

    enabled: bool = True
    """False = requests wait until their deadline, and only a full queue refuses."""
    margin: float = 1.0
    """A request is refused when its predicted wait exceeds its deadline times this factor."""
    min_observations: int = 20
    """Placements observed before requests are refused by prediction."""
    drain_memory_s: float = 20.0
    """Time constant of the measured drain rate, in seconds with queued requests."""
    residual_step: float = 0.05
    """Step of the running mean of log(observed / predicted wait), 0 to 1."""
    sampled_flows: int = 32
    """Tenants that one prediction evaluates; of more, an even sample."""


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """All tunables of one scheduler."""

    policy: PolicyConfig = field(default_factory=PolicyConfig)
    queue: QueueRules = field(default_factory=QueueRules)
    admission: AdmissionRules = field(default_factory=AdmissionRules)


def fifo() -> SchedulerConfig:
    """First come first served, without refusals by prediction."""
    return SchedulerConfig(
        queue=QueueRules(fair=False, kv_share=1.0, oldest_every=1, max_skips=0, reorder_window=1),
        admission=AdmissionRules(enabled=False),
    )


def plain_vtc() -> SchedulerConfig:
    """The Virtual Token Counter as published: no reordering by prefix, no cap on KV cache, first come first served
    per tenant."""
    return SchedulerConfig(
        queue=QueueRules(kv_share=1.0, oldest_every=1, max_skips=0, reorder_window=1),
        admission=AdmissionRules(enabled=False),
    )
