"""Every tunable of placement in one place, with what it stands for; the simulator sweeps them."""

from dataclasses import dataclass

HEARTBEAT_STALE_S = 2.0
"""A replica not heard of for longer is not routed to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """How replicas are filtered, scored and picked. Seconds, tokens and shares (0 to 1)."""

    heartbeat_stale_s: float = HEARTBEAT_STALE_S
    """After which silence a replica is left out."""
    kv_fill: float = 0.9
    """Share of the KV cache that placements may plan with; the rest is for outputs longer than estimated."""
    kv_reserve: float = 0.5
    """Share of the running answers' outstanding tokens that room is kept for: they do not all end at once."""
    max_engine_waiting: int = 4
    """The queue is ours: a replica whose own queue is longer takes nothing new."""

    near_tie: float = 0.03
    """Costs within this share of the least are equal; chance decides, so that ties starve no replica."""
    sticky_hit_fraction: float = 0.8
    """A replica that holds this share of the prompt is preferred ..."""
    sticky_hit_tokens: int = 4096
    """... or this many of its tokens ..."""
    sticky_extra_s: float = 18.0
    """... unless it costs more than going elsewhere by T_max, at most this (the llm-d router's figure) ..."""
    sticky_prefills: float = 5.0
    """... and at most so many times what prefilling the prompt from nothing takes, ..."""
    sticky_min_s: float = 1.0
    """... but never less than this. A short shared prompt is not worth a long wait; a lost long one costs everybody."""

    eta: float = 0.5
    """Weight of what a placement costs those that run on the replica already: each waits `u/R` and `o*beta/accept`."""
    epsilon: float = 1.0
    """Weight of hot cached tokens that a placement pushes out: someone prefills them again."""
    hot_s: float = 60.0
    """Cached blocks used within this are hot: worth keeping."""

    backlog_cold_s: float = 1.0
    """A replica with more routed but unprefilled work than this takes no cold prompt: let it wait in our queue."""
    backlog_warm_s: float = 18.0
    """The same for prompts it holds mostly: sent elsewhere they would be prefilled again, and push others out."""
    backlog_floor: float = 0.25
    """Share of the unprefilled work that is believed to be left even when it should all be done by now: all of it
    once a first token is overdue (`replica.OVERDUE_S`)."""
    itl_slack: float = 0.95
    """A batch is full when one more would slow answers beyond this share of the promised time per token: at first,
    since the share is learnt (`model_stats.ModelStats.itl_slack`) ..."""
    slack_min: float = 0.6
    """... and kept between this ..."""
    slack_max: float = 1.0
    """... and this, ..."""
    itl_miss_share: float = 0.05
    """... so that such a share of the answers in full batches misses the promise ..."""
    slack_step: float = 0.004
    """... in steps of this for each that missed it, and `itl_miss_share` of this for each that kept it. 0 = not learnt.
    With 0.01 it overshoots: answers that are under way when it falls still count."""
    full_batch_share: float = 0.6
    """An answer came from a full batch when its predicted time per token was above this share of the promised one."""
    miss_min_queued_s: float = 0.05
    """A miss makes batches smaller only where the request had waited in our queue for longer than this."""
    itl_floor: float = 2.0
    """It is not full below this multiple of the time per token of one sequence alone: no promise idles a replica."""
    warm_slack: float = 1.2
    """A batch may grow by this factor beyond that for a prompt that the replica holds mostly."""
    typical_gain: float = 0.02
    """Step of the running means of what a placement asks for."""

    residual_gain: float = 0.1
    """Step of the running means of observed minus predicted."""
    residual_half_life_s: float = 60.0
    """Without news a residual fades by half in this time."""
    residual_limit_s: float = 2.0
    """A single answer moves a residual as if it had been off by at most this."""

    kv_event_grace_s: float = 0.25
    """Exact prefix knowledge: how long after its first token a prompt is believed cached without an event."""
    miss_age_s: float = 5.0
    """Mirrored prefix knowledge: a prefix used within this was perhaps still being prefilled when it was missed."""
    miss_share: float = 0.5
    """An answer that found less than this share of the believed prefix was a miss."""
    full_share: float = 0.8
    """A mirror that holds more than this share of the cache's room stands for a cache that evicts."""
    max_replica_blocks: int = 65_536
    """Prefix blocks remembered per replica ..."""
    max_blocks: int = 8_000_000
    """... and of all replicas of all models together; `make bench-scheduler` says what one takes."""
