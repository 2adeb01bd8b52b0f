"""Every tunable of placement. The simulator varies them."""

from dataclasses import dataclass

HEARTBEAT_STALE_S = 2.0
"""A replica whose last heartbeat is older than this gets no requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """How replicas are filtered, scored and picked. Units: seconds, tokens, and shares from 0 to 1."""

    heartbeat_stale_s: float = HEARTBEAT_STALE_S
    """Age of the last heartbeat from which a replica gets no requests."""
    kv_fill: float = 0.9
    """Share of the KV cache that placements may reserve; the rest is for answers longer than estimated."""
    kv_reserve: float = 0.5
    """Share of the outstanding tokens of running answers that is reserved: they do not all end at once."""
    max_engine_waiting: int = 4
    """Length of the engine's own queue above which a replica takes no request."""

    near_tie: float = 0.03
    """Costs within this share of the least count as equal; a random choice among them keeps every replica in use."""
    sticky_hit_fraction: float = 0.3
    """A replica that holds this share of the prompt is preferred (the threshold of SGLang's router)."""
    sticky_hit_tokens: int = 4096
    """A replica that holds this many tokens of the prompt is preferred too."""
    sticky_extra_s: float = 18.0
    """Upper bound of T_max, the extra cost at which a preferred replica is still chosen (the value of the llm-d
    router)."""
    sticky_prefills: float = 5.0
    """T_max as a multiple of the time that a full prefill of the prompt takes."""
    sticky_min_s: float = 1.0
    """Lower bound of T_max. A short shared prompt is not worth a long wait; to lose a long one delays all."""

    eta: float = 0.7
    """Weight of the delay of running requests: each waits `u/R` and `o*beta/accept`."""

    backlog_cold_s: float = 1.0
    """Prefill backlog above which a replica takes no prompt that it does not hold."""
    backlog_warm_s: float = 4.0
    """Prefill backlog above which a replica takes no prompt at all. Elsewhere a prompt that it holds would be
    prefilled again and evict others."""
    backlog_floor: float = 0.25
    """Share of the unprefilled work that is assumed to be left even after it should be done; all of it once a first
    token is overdue (`replica.OVERDUE_S`)."""
    itl_slack: float = 0.95
    """Initial share of the target time per token beyond which a batch is full; it is learnt
    (`model_stats.ModelStats.itl_slack`)."""
    slack_min: float = 0.6
    """Smallest share that is learnt."""
    slack_max: float = 1.0
    """Largest share that is learnt."""
    itl_miss_share: float = 0.05
    """Share of the answers from full batches that may miss the target."""
    slack_step: float = 0.004
    """Decrease of the share for each miss; each answer in time increases it by `itl_miss_share` of this. 0 = not
    learnt. With 0.01 it overshoots, because answers that run when it falls still count."""
    full_batch_share: float = 0.6
    """An answer came from a full batch when its predicted time per token was above this share of the target."""
    miss_min_queued_s: float = 0.05
    """A miss makes batches smaller only if the request was queued for longer than this."""
    itl_floor: float = 2.0
    """A batch is not full below this multiple of the time per token of a single sequence, so that no target idles a
    replica."""
    warm_slack: float = 1.5
    """Factor by which the limit of a batch is higher for prompts that the replica mostly holds. Times `slack_min` it is
    below 1, so that what is learnt can bring such a batch back within the target while requests queue."""
    typical_gain: float = 0.02
    """Step of the running means of typical requests."""

    kv_event_grace_s: float = 0.25
    """Exact prefix knowledge: seconds after its first token for which a prompt counts as cached without an event."""
    miss_age_s: float = 5.0
    """Mirrored prefix knowledge: a prefix used within this time may still have been in prefill when it was missed."""
    miss_share: float = 0.5
    """An answer that found less than this share of the believed prefix counts as a miss."""
    full_share: float = 0.8
    """A mirror that holds more than this share of the KV cache counts as full."""
    max_replica_blocks: int = 65_536
    """Prefix blocks that are remembered per replica."""
    max_blocks: int = 8_000_000
    """Prefix blocks that are remembered of all replicas together; `make bench-scheduler` measures the bytes of
    one."""
