"""Everything about the fair queue and admission that may be tuned, in one place: frozen, documented, passed in.

The live service uses the defaults; the simulator also runs variants (first come first served, plain VTC).
"""

from dataclasses import dataclass, field

from scheduler.core.config import PolicyConfig
from scheduler.wire import PlaceRequest

BANDS = ("priority", "standard", "batch")
"""Strict bands, first served first. An unknown tier counts as standard."""
NEW_TENANT = ""
"""The nameless tenant: in counters it stands for what a newcomer would start with."""


@dataclass(frozen=True, kw_only=True)
class QueueRules:
    """How one model's queue orders what waits. Counters are in weighted tokens (see `charge`)."""

    fair: bool = True
    """False = first come first served inside a band, whoever asks."""
    input_weight: float = 1.0
    """w_p: the charge of an uncached input token (Sheng et al., OSDI'24)."""
    output_weight: float = 2.0
    """w_q: the charge of an output token."""
    slack: float = 20_000.0
    """Q: among tenants this close to the smallest counter the longest cached prefix goes first (DLPM, arXiv
    2501.14312). 0 = plain VTC."""
    compared_flows: int = 4
    """Tenants compared by cached prefix in one pick."""
    reorder_window: int = 16
    """Where the next request of the first of them is mostly uncached, so many of that tenant are compared: its longest
    cached prefix goes first, which no other tenant pays for. Every `oldest_every`-th pick is the oldest's. 1 = off."""
    kv_share: float = 0.5
    """Part of the pool's KV cache that one tenant's running requests may plan with while others of its band wait;
    never less than its share by weight. 1 = no cap."""
    late_ttft_share: float = 0.7
    """A request that waited this share of its model's TTFT target is late: the rest is what the replica needs."""
    oldest_every: int = 16
    """Inside a tenant, requests that can still meet the TTFT target go before late ones; but every so many-th pick goes
    to the oldest, so that none starves. 1 = strictly first come first served."""
    max_skips: int = 3
    """When the next request fits nowhere, so many others within Q are tried in its place ..."""
    starvation_limit: int = 64
    """... but once a request has been in the way this often, a replica is kept free for it, so that large prompts do
    not starve: nothing else of its band goes there until it is placed, ..."""
    reservation_s: float = 30.0
    """... or so many seconds have passed: an answer of a thousand tokens has ended by then, so what still runs there
    came from a higher band or would take too long to wait for. As long a time follows in which none is kept free."""
    max_idle_flows: int = 4096
    """Counters kept in each band of tenants that wait for nothing and run nothing."""
    max_waiting: int = 16_384
    """Requests that may wait for one model."""
    max_waiting_share: float = 0.5
    """The part of `max_waiting` that one tenant may fill while others wait."""

    def work(self, request: PlaceRequest) -> float:
        """What a request asks of the pool as far as is known on arrival: its tokens, weighted, with nothing cached."""
        return self.input_weight * request.prompt_tokens + self.output_weight * request.output_tokens

    def charge(self, uncached: int, output: int, weight: float) -> float:
        """What `uncached` input and `output` tokens add to the counter of a tenant of this weight."""
        return (self.input_weight * uncached + self.output_weight * output) / weight

    def flow_of(self, tenant_id: str) -> str:
        """Whose line its requests stand in: the tenant's, or the one line of everybody."""
        return tenant_id if self.fair else ""


@dataclass(frozen=True, kw_only=True)
class AdmissionRules:
    """When a request is refused on arrival because its predicted wait exceeds its deadline."""

    enabled: bool = True
    """False = everybody may wait until the deadline; only a full queue refuses."""
    margin: float = 1.0
    """Refuse when the predicted wait exceeds the deadline this many times over; above 1 in doubt for the caller."""
    min_observations: int = 20
    """Waits observed before anything is refused by prediction."""
    drain_memory_s: float = 20.0
    """Time constant of the measured drain rate, in backlogged seconds."""
    residual_step: float = 0.05
    """EWMA step of observed / predicted wait."""
    sampled_flows: int = 32
    """Tenants looked at for one prediction; beyond that many, an even sample of them."""


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """All rules of one scheduler."""

    policy: PolicyConfig = field(default_factory=PolicyConfig)
    queue: QueueRules = field(default_factory=QueueRules)
    admission: AdmissionRules = field(default_factory=AdmissionRules)


def fifo() -> SchedulerConfig:
    """First come first served, nobody refused by prediction."""
    return SchedulerConfig(
        queue=QueueRules(fair=False, slack=0.0, kv_share=1.0, oldest_every=1, max_skips=0, reorder_window=1),
        admission=AdmissionRules(enabled=False),
    )


def plain_vtc() -> SchedulerConfig:
    """The Virtual Token Counter as published: no prefix-friendly reordering, no KV cap, FIFO inside a tenant."""
    return SchedulerConfig(
        queue=QueueRules(slack=0.0, kv_share=1.0, oldest_every=1, max_skips=0, reorder_window=1),
        admission=AdmissionRules(enabled=False),
    )
