"""An active placement: a request on a replica, from its placement until its release."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler.core.predict import Baseline
from workers.ranks import rank_id
from workers.step_time import context_pairs


@dataclass(slots=True)
class ActivePlacement:
    """One active placement. Times are monotonic seconds."""

    client: str
    tenant_id: str
    model: str
    replica_id: str
    boot_id: str
    prompt_tokens: int
    hit_tokens: int
    """Prompt tokens believed to be cached on the replica at placement."""
    output_tokens: int
    """Estimated output tokens."""
    produced: int
    prefilled: bool
    placed_at: float
    predicted_ttft_s: float = 0.0
    """Predicted seconds from placement to first token."""
    predicted_itl_s: float = 0.0
    queued_s: float = 0.0
    """Seconds that the request was queued."""
    first_token_at: float = 0.0
    """Time of the first token; 0 until it came."""
    tier: str = "standard"
    weight: float = 1.0
    blocks: Sequence[int] = field(default=())
    """The request's prefix blocks, for corrections of what the replica is believed to hold."""
    block_tokens: int = 0
    """Tokens in each of `blocks`; 0 = an even share of the prompt."""
    baseline: Baseline = field(default_factory=Baseline)
    """Values at placement that later observations are compared with."""
    charged: float = 0.0
    """The part of the charge that is in its tenant's counter."""
    reserved: int = 0
    """Tokens of KV cache that count against its tenant's cap."""
    rank: int | None = None
    """Rank of the replica that it is on; None = the replica has none, or none was chosen."""
    target_id: str = field(init=False)
    """Name of the replica, or of the rank, whose load it is part of."""

    def __post_init__(self) -> None:
        self.target_id = self.replica_id if self.rank is None else rank_id(self.replica_id, self.rank)

    @property
    def uncached(self) -> int:
        """Prompt tokens that the replica has to prefill."""
        return max(0, self.prompt_tokens - self.hit_tokens)

    @property
    def pairs(self) -> float:
        """Pairs of these tokens with tokens before them, which their attention computes."""
        return context_pairs(self.uncached, self.prompt_tokens)
