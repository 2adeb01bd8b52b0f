"""One replica as the policy sees it: its last heartbeat, the load we routed there, and its prefix mirror."""

from dataclasses import dataclass, field

from scheduler.core.prefix import PrefixMirror
from workers.wire import ReplicaState, ReplicaStatus

SETTLING_BEATS = 2
"""Heartbeats after (re)discovery during which load is max(announced, engine-reported) (DESIGN §6)."""


@dataclass
class Load:
    """What is routed to a replica and not yet over; moved before any await, never recomputed from a scan."""

    running: int = 0
    """D: sequences."""
    unprefilled: int = 0
    """P: uncached prompt tokens routed but not yet prefilled."""
    kv_tokens: int = 0
    """K: uncached prompt tokens plus the output tokens produced so far."""


@dataclass
class Replica:
    """The state of one replica; `status` is replaced by every heartbeat."""

    status: ReplicaStatus
    agent_id: str
    heard_at: float
    """Monotonic seconds of the last heartbeat."""
    load: Load
    prefix: PrefixMirror
    beats: int = 0
    """Heartbeats since this scheduler first heard of it."""
    hold: ReplicaState | None = field(default=None)
    """A state we have just commanded, believed until a heartbeat says otherwise."""

    @property
    def kv_capacity(self) -> int:
        """Room of the KV cache in tokens: the engine's own figure where it gives one."""
        blocks = self.status.kv_blocks * self.status.block_size
        return blocks or self.status.capacity.kv_cache_tokens

    @property
    def running(self) -> int:
        """D: sequences on the replica; just after a restart the engine may know of more than we do."""
        if self.beats <= SETTLING_BEATS:
            return max(self.load.running, self.status.running + self.status.waiting)
        return self.load.running

    @property
    def kv_tokens(self) -> int:
        """K: KV tokens in use, by our count or the engine's, whichever is larger."""
        return max(self.load.kv_tokens, int(self.status.kv_usage * self.kv_capacity))

    @property
    def slots(self) -> int:
        """Sequences it may run at once."""
        return max(1, self.status.capacity.max_num_seqs)
