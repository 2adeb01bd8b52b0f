"""An open placement: a request that runs on a replica, as the scheduler keeps it until it is released."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler.core.predict import Baseline


@dataclass(slots=True)
class ActivePlacement:
    """A placement that is not over."""

    client: str
    tenant_id: str
    model: str
    replica_id: str
    boot_id: str
    prompt_tokens: int
    hit_tokens: int
    """Prompt tokens believed cached there when it was placed."""
    output_tokens: int
    """Estimated."""
    produced: int
    prefilled: bool
    placed_at: float
    """Monotonic seconds."""
    predicted_ttft_s: float = 0.0
    """From placement to first token."""
    predicted_itl_s: float = 0.0
    queued_s: float = 0.0
    """Seconds it waited in our queue."""
    first_token_at: float = 0.0
    """Monotonic seconds; 0 until it came."""
    tier: str = "standard"
    weight: float = 1.0
    blocks: Sequence[int] = field(default=())
    """The request's prefix blocks, for correcting what the replica is believed to hold."""
    block_tokens: int = 0
    """Tokens in each of `blocks`; 0 = an even share of the prompt."""
    baseline: Baseline = field(default_factory=Baseline)
    """What the fleet wrote down to learn from how it goes."""
    charged: float = 0.0
    """What of it is in its tenant's counter so far."""
    reserved: int = 0
    """KV tokens that count against its tenant's cap."""

    @property
    def uncached(self) -> int:
        """Prompt tokens the replica has to prefill for it."""
        return max(0, self.prompt_tokens - self.hit_tokens)
