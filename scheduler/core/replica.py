"""One replica as placement sees it: its last heartbeat, the load we routed there, its prefix cache, what was learnt."""

from dataclasses import dataclass, field

from scheduler.core.config import PolicyConfig
from scheduler.core.predict import PrefillShare, Residual, step_s
from scheduler.core.prefix import PrefixSource
from workers.wire import ReplicaState, ReplicaStatus

SETTLING_HEARTBEATS = 2
"""Heartbeats after (re)discovery during which load is max(announced, engine-reported) (DESIGN §6)."""

OVERDUE_S = 2.0
"""A first token that is late by more than this says that the work before it is not being done."""


@dataclass(slots=True)
class Load:
    """What is routed to a replica and not yet over; moved before any await, never recomputed from a scan."""

    running: int = 0
    """D: sequences."""
    unprefilled: int = 0
    """P: uncached prompt tokens routed but not yet prefilled."""
    kv_tokens: int = 0
    """K: uncached prompt tokens plus the output tokens produced so far."""
    context_tokens: int = 0
    """Tokens that a decode step attends to: every running prompt whole, cached or not, and the output so far."""
    outstanding: int = 0
    """Output tokens that are still expected of what runs."""
    first_tokens_due: dict[int, float] = field(default_factory=dict)
    """By placement, oldest first: when the first token of those not prefilled yet should come."""

    def overdue(self, now: float) -> bool:
        """Whether the oldest first token is late by so much that the replica perhaps stands still."""
        return bool(self.first_tokens_due) and now - next(iter(self.first_tokens_due.values())) > OVERDUE_S


class ReplicaStats:
    """What a replica's answers have taught about it."""

    __slots__ = ("hit_precision", "prefill_share", "slowdown", "ttft")

    def __init__(self, config: PolicyConfig) -> None:
        gain, half_life_s = config.residual_gain, config.residual_half_life_s
        self.ttft = Residual(gain, config.residual_limit_s, half_life_s)
        """q: seconds that first tokens come later than the step model says."""
        self.slowdown = Residual(gain, 1.0, half_life_s)
        """ITL: observed / predicted - 1."""
        self.prefill_share = PrefillShare()
        self.hit_precision = 1.0
        """Share of believed cache hits that turned out to be there."""


class DerivedCapacity:
    """What follows from a heartbeat alone, worked out once for all decisions until the next."""

    __slots__ = (
        "accept",
        "itl_per_kv",
        "kv_capacity",
        "kv_used",
        "min_itl_s",
        "prefill_rate",
        "prefill_s_per_token",
        "slots",
        "target_itl_s",
    )  # fmt: skip

    def __init__(self, status: ReplicaStatus, config: PolicyConfig) -> None:
        capacity = status.capacity
        self.kv_capacity = status.kv_blocks * status.block_size or capacity.kv_cache_tokens
        """Room of the KV cache in tokens: the engine's own figure where it gives one."""
        self.kv_used = int(status.kv_usage * self.kv_capacity)
        self.slots = max(1, capacity.max_num_seqs)
        """Sequences it may run at once."""
        self.prefill_rate = max(1.0, capacity.prefill_tokens_per_s)
        """R: prompt tokens per second ..."""
        self.prefill_s_per_token = 1.0 / self.prefill_rate
        """... and seconds per token."""
        self.accept = max(1.0, capacity.accept_per_step)
        self.itl_per_kv = capacity.step_per_kv_token_s / self.accept
        """Seconds per output token and KV token."""
        alone_s = step_s(capacity, 1, 0) / self.accept
        self.target_itl_s = status.targets.tpot_s
        """Seconds per output token that are promised ..."""
        self.min_itl_s = config.itl_floor * alone_s
        """... and those that a full batch may take whatever is promised."""


@dataclass(slots=True, eq=False)
class Replica:
    """The state of one replica; `status` is replaced by every heartbeat."""

    status: ReplicaStatus
    agent_id: str
    last_seen_at: float
    """Monotonic seconds of the last heartbeat."""
    load: Load
    prefix: PrefixSource
    stats: ReplicaStats
    row: int
    """Its column in the model's pool, and its bit in the prefix index."""
    derived: DerivedCapacity
    """What follows from `status`."""
    heartbeats: int = 0
    """Heartbeats since this scheduler first heard of it."""
    expected_state: ReplicaState | None = field(default=None)
    """A state we have just commanded, believed until a heartbeat says otherwise."""
    prefill_done_at: float = float("-inf")
    """When the prefill work routed so far should be done."""

    @property
    def state(self) -> ReplicaState:
        """What it is believed to be in."""
        return self.expected_state or self.status.state

    @property
    def running(self) -> int:
        """D: sequences on the replica; just after a restart the engine may know of more than we do."""
        if self.heartbeats <= SETTLING_HEARTBEATS:
            return max(self.load.running, self.status.running + self.status.waiting)
        return self.load.running

    @property
    def kv_tokens(self) -> int:
        """K: KV tokens in use, by our count or the engine's, whichever is larger."""
        return max(self.load.kv_tokens, self.derived.kv_used)

    @property
    def context_tokens(self) -> int:
        """Tokens that a decode step attends to, by our count or the engine's: prompts that share a prefix share its
        room in the cache, not the time that is taken to read it."""
        return max(self.load.context_tokens, self.derived.kv_used)

    @property
    def slots(self) -> int:
        """Sequences it may run at once."""
        return self.derived.slots

    @property
    def kv_capacity(self) -> int:
        """Room of the KV cache in tokens."""
        return self.derived.kv_capacity
