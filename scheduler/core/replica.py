"""The state of one replica, or of one rank of it: last heartbeat, routed load, prefix cache, learnt corrections."""

from dataclasses import dataclass, field

from scheduler.core.acceptance import Acceptance
from scheduler.core.config import PolicyConfig
from scheduler.core.predict import PrefillShare
from scheduler.core.prefix import PrefixSource
from scheduler.core.replica_meter import ReplicaMeter
from scheduler.core.rules import BANDS
from workers.step_time import context_pairs, decode_step_s
from workers.wire import Capacity, ReplicaState, ReplicaStatus

SETTLING_HEARTBEATS = 2
"""Heartbeats after (re)discovery during which load is the larger of the announced and the engine's."""

OVERDUE_S = 2.0
"""Delay of a first token, in seconds, after which the prefill backlog is assumed not to shrink."""


@dataclass(slots=True)
class Load:
    """Placements on a replica, as counters that change with every event and are never recomputed."""

    running: int = 0
    """D: running sequences."""
    decoding: int = 0
    """Those whose first token has come."""
    unprefilled: int = 0
    """P: uncached prompt tokens that are routed but not prefilled."""
    unprefilled_pairs: float = 0.0
    """Pairs of these tokens with tokens before them (`step_time.context_pairs`)."""
    kv_tokens: int = 0
    """K: uncached prompt tokens and output tokens produced so far."""
    context_tokens: int = 0
    """Tokens that a decode step attends to: whole prompts, cached or not, and the output so far."""
    outstanding: int = 0
    """Output tokens still expected from running requests."""
    by_band: list[int] = field(default_factory=lambda: [0] * len(BANDS))
    """Running sequences of each band."""
    first_tokens_due: dict[int, float] = field(default_factory=dict)
    """By placement, oldest first: when the first token is due, for requests that are not prefilled."""

    def drop_prefill(self, tokens: int, pairs: float) -> None:
        """Take out a prompt that was prefilled or has left."""
        self.unprefilled -= tokens
        # Sums of fractions: without the reset, rounding errors would add up over the life of a replica.
        self.unprefilled_pairs = self.unprefilled_pairs - pairs if self.unprefilled else 0.0

    def overdue(self, now: float) -> bool:
        """Whether the oldest first token is so late that the replica may be stuck."""
        return bool(self.first_tokens_due) and now - next(iter(self.first_tokens_due.values())) > OVERDUE_S


class DerivedCapacity:
    """Values that follow from a heartbeat, computed once for all decisions until the next."""

    __slots__ = (
        "accept",
        "cache_tokens",
        "itl_per_kv",
        "kv_capacity",
        "kv_used",
        "min_itl_s",
        "prefill_pair_s",
        "prefill_rate",
        "prefill_s_per_token",
        "slots",
        "targets_differ",
        "targets_itl_s",
    )  # fmt: skip

    def __init__(self, status: ReplicaStatus, capacity: Capacity, config: PolicyConfig) -> None:
        self.kv_capacity = status.kv_blocks * status.block_size or capacity.kv_cache_tokens
        """KV cache in tokens; the engine's own figure if it reports one."""
        self.cache_tokens = self.kv_capacity + capacity.host_kv_tokens
        """Tokens whose KV is kept: in the engine's cache and in host memory behind it."""
        self.kv_used = int(status.kv_usage * self.kv_capacity)
        self.slots = max(1, capacity.max_num_seqs)
        """Sequences that may run at once."""
        self.prefill_rate = max(1.0, capacity.prefill_tokens_per_s)
        """R: prompt tokens per second."""
        self.prefill_s_per_token = 1.0 / self.prefill_rate
        """Seconds per prompt token."""
        self.accept = max(1.0, capacity.accept_per_step)
        self.itl_per_kv = capacity.step_per_kv_token_s / self.accept
        """Seconds per output token and token of KV cache."""
        self.prefill_pair_s = capacity.prefill_pair_s
        """q: seconds per pair of a new prompt token and a token before it."""
        alone_s = decode_step_s(capacity, 1, 0) / self.accept
        self.targets_itl_s = tuple(status.targets.of(tier).tpot_s for tier in BANDS)
        """Target seconds per output token by band."""
        self.targets_differ = len(set(self.targets_itl_s)) > 1
        self.min_itl_s = config.itl_floor * alone_s
        """Seconds per output token that a batch may take whatever the target."""

    def prefill_s(self, uncached: float, prompt: float) -> float:
        """Seconds to compute the last `uncached` of `prompt` tokens, as `step_time.prefill_s`."""
        return uncached * self.prefill_s_per_token + context_pairs(uncached, prompt) * self.prefill_pair_s


PROBED = 0.15
"""Relative difference of figures that fresh engines of one profile are probed with."""


def speeds(stated: Capacity) -> tuple[float, ...]:
    """The stated figures that are learnt: estimates of like ones can be compared."""
    return stated.prefill_tokens_per_s, stated.step_base_s, stated.step_per_seq_s, stated.step_experts_s


def alike(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Whether two `speeds` are of one kind of engine: equal, or probed of two engines of one profile."""
    return all(
        abs(mine - theirs) <= PROBED * max(mine, theirs) for mine, theirs in zip(one, other, strict=True)
    )


@dataclass(slots=True, eq=False)
class Replica:
    """What requests are placed on: one replica, or one rank of a replica. Every heartbeat replaces `status`."""

    status: ReplicaStatus
    """Of the rank alone, where it is one."""
    engine: ReplicaStatus
    """Of the whole replica, as its agent reports it; `status` itself where it has no ranks."""
    rank: int | None
    """Number of the rank; None = the replica has no ranks."""
    agent_id: str
    last_seen_at: float
    """Monotonic seconds of the last heartbeat."""
    load: Load
    prefix: PrefixSource
    prefill_share: PrefillShare
    """phi, as routed to it."""
    meter: ReplicaMeter
    """Learns its speed."""
    stated: Capacity
    """What its heartbeats state, with the tokens of a step that its engine's counters show."""
    capacity: Capacity
    """Its capacity as believed: `stated`, with the speeds that are learnt."""
    row: int
    """Row in the model's pool, and bit in the prefix index."""
    derived: DerivedCapacity
    heartbeats: int = 0
    """Heartbeats since this scheduler discovered the replica."""
    expected_state: ReplicaState | None = field(default=None)
    """The state that a command should bring about, assumed until the next heartbeat."""
    acceptance: Acceptance = field(default_factory=Acceptance)
    """Learns the tokens of a step."""
    prefill_done_at: float = float("-inf")
    """When the prefill work routed so far should be done, in monotonic seconds."""

    @property
    def state(self) -> ReplicaState:
        """The present state, or the expected one after a command."""
        return self.expected_state or self.status.state

    @property
    def running(self) -> int:
        """D: running sequences; just after a restart the engine may know of more than the scheduler."""
        if self.heartbeats <= SETTLING_HEARTBEATS:
            return max(self.load.running, self.status.running + self.status.waiting)
        return self.load.running

    @property
    def kv_tokens(self) -> int:
        """K: tokens of KV cache in use, by the scheduler's or the engine's count, whichever is larger."""
        return max(self.load.kv_tokens, self.derived.kv_used)

    @property
    def context_tokens(self) -> int:
        """Tokens that a decode step attends to, by the scheduler's or the engine's count.

        Prompts that share a prefix share its room in the cache, but not the time to read it.
        """
        return max(self.load.context_tokens, self.derived.kv_used)

    @property
    def engine_capacity(self) -> Capacity:
        """The believed capacity of the whole replica."""
        if self.rank is None:
            return self.capacity
        return self.meter.estimate.apply(self.acceptance.apply(self.engine.capacity))

    def target_itl_s(self, band: int) -> float:
        """Seconds per output token that a batch with one more request of `band` may take.

        The targets of higher bands that run here bind too, and those of lower bands do not: where a looser target has
        let the batch grow, a request of a higher band joins it rather than wait until it has shrunk.
        """
        targets, running = self.derived.targets_itl_s, self.load.by_band
        loosest = max(
            target
            for index, target in enumerate(targets)
            if index == band or (index > band and running[index])
        )
        return min([loosest, *(targets[index] for index in range(band) if running[index])])

    def backlog_s(self, uncached_ratio: float) -> float:
        """Seconds of prefill that are routed here, when `uncached_ratio` of the tokens believed uncached are so."""
        load, derived = self.load, self.derived
        return uncached_ratio * (
            load.unprefilled * derived.prefill_s_per_token + load.unprefilled_pairs * derived.prefill_pair_s
        )

    @property
    def slots(self) -> int:
        """Sequences that may run at once."""
        return self.derived.slots

    @property
    def kv_capacity(self) -> int:
        """KV cache in tokens."""
        return self.derived.kv_capacity


def usable(replica: Replica, now: float, stale_s: float) -> bool:
    """Whether a replica takes requests: it is ready and its last heartbeat is at most `stale_s` seconds old."""
    return replica.state is ReplicaState.READY and now - replica.last_seen_at <= stale_s
