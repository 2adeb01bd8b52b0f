"""What a placement costs: the formulas of the score (DESIGN §6), each written once.

They hold for one replica in plain numbers and for the columns of a whole pool alike: `T` is a float or a vector.
"""

from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from scheduler.core.config import PolicyConfig
from scheduler.wire import PlaceRequest

Vector = NDArray[np.float64]
T = TypeVar("T", float, Vector)


class ScoreInputs(NamedTuple, Generic[T]):
    """What the score needs of a replica: of one (floats), or of every row of a pool (vectors)."""

    awake_until: T
    """Until when it may be given requests unless it is heard of again; -inf = it is not ready, or has no slot."""
    open_until: T
    """The same while its batch also keeps the promised time per token: it takes any request ..."""
    warm_until: T
    """... or keeps it nearly: it takes requests whose prompt it holds."""
    kv_room: T
    """Tokens (prompt and answer) that still fit its KV plan ..."""
    room: T
    """... and its promised time per token."""
    prefill_done_at: T
    """When its prefill backlog should be done."""
    min_backlog_s: T
    """Seconds of backlog that are believed even when `prefill_done_at` has passed."""
    ttft_residual_s: T
    """q, seconds."""
    prefill_s_per_token: T
    """1/R: seconds per uncached prompt token for this request ..."""
    prefill_cost_per_token: T
    """... and with eta: for those that run there, too."""
    itl: T
    """Seconds per output token with one more sequence, before that one's own KV."""
    itl_cost: T
    """The same with eta: what a further output token costs everyone there."""
    itl_per_kv: T
    """Added seconds per output token and KV token."""
    kv_excess: T
    """Cached and used tokens beyond its KV room; negative = free room."""
    eviction_cost_per_token: T
    """Seconds that pushing out one cached token costs."""
    hit_precision: T
    """Share of believed hits that turned out to be there."""


def ttft_s(uncached: T, backlog_s: T, inputs: ScoreInputs[T]) -> T:
    """`TTFT = P/R + u/R + q`: the backlog P/R shrinks as time passes, for the engine works on it."""
    return uncached * inputs.prefill_s_per_token + backlog_s + inputs.ttft_residual_s


def cost_s(prompt: float, output: float, uncached: T, backlog_s: T, evicted: T, inputs: ScoreInputs[T]) -> T:
    """J for n prompt tokens of which u are not cached there, and o output tokens:

    `J = TTFT + o*ITL + eta*D*(u/R + o*beta/accept) + eps*hot/R`, with ITL from Pool.refresh for D+1 sequences over
    K+n tokens. `pushed_out` are the cached tokens that u + o new ones push out of a full cache.
    """
    return (
        uncached * inputs.prefill_cost_per_token
        + backlog_s
        + inputs.ttft_residual_s
        + output * inputs.itl_cost
        + prompt * output * inputs.itl_per_kv
        + evicted * inputs.eviction_cost_per_token
    )


def tokens_per_block(request: PlaceRequest) -> float:
    """Tokens in each of the request's blocks: text blocks share its prompt evenly."""
    return request.block_tokens or request.prompt_tokens / max(1, len(request.blocks))


def sticky_threshold(request: PlaceRequest, config: PolicyConfig) -> float:
    """Cached tokens from which on a replica counts as holding the prompt."""
    return max(1.0, min(config.sticky_hit_fraction * request.prompt_tokens, config.sticky_hit_tokens))


def sticky_limit_s(request: PlaceRequest, prefill_rate: float, config: PolicyConfig) -> float:
    """T_max: what may be given up for the sake of a cached prefix, the more the longer its prefill takes."""
    worth_s = config.sticky_prefills * request.prompt_tokens / prefill_rate
    return min(config.sticky_extra_s, max(config.sticky_min_s, worth_s))
