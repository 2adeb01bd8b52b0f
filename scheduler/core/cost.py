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


class Figures(NamedTuple, Generic[T]):
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
    clear_at: T
    """When its prefill backlog should be done."""
    least_backlog: T
    """Seconds of backlog that are believed even when `clear_at` has passed."""
    residual: T
    """q, seconds."""
    per_token: T
    """1/R: seconds per uncached prompt token for this request ..."""
    stall: T
    """... and with eta: for those that run there, too."""
    itl: T
    """Seconds per output token with one more sequence, before that one's own KV."""
    itl_cost: T
    """The same with eta: what a further output token costs everyone there."""
    itl_per_kv: T
    """Added seconds per output token and KV token."""
    overfull: T
    """Cached and used tokens beyond its KV room; negative = free room."""
    hot_per_token: T
    """Seconds that pushing out one cached token costs."""
    trust: T
    """Share of believed hits that turned out to be there."""


def ttft_s(uncached: T, backlog_s: T, of: Figures[T]) -> T:
    """`TTFT = P/R + u/R + q`: the backlog P/R shrinks as time passes, for the engine works on it."""
    return uncached * of.per_token + backlog_s + of.residual


def cost_s(prompt: float, output: float, uncached: T, backlog_s: T, pushed_out: T, of: Figures[T]) -> T:
    """J for n prompt tokens of which u are not cached there, and o output tokens:

    `J = TTFT + o*ITL + eta*D*(u/R + o*beta/accept) + eps*hot/R`, with ITL from Pool.refresh for D+1 sequences over
    K+n tokens. `pushed_out` are the cached tokens that u + o new ones push out of a full cache.
    """
    return (
        uncached * of.stall
        + backlog_s
        + of.residual
        + output * of.itl_cost
        + prompt * output * of.itl_per_kv
        + pushed_out * of.hot_per_token
    )


def tokens_per_block(request: PlaceRequest) -> float:
    """Tokens in each of the request's blocks: text blocks share its prompt evenly."""
    return request.block_tokens or request.prompt_tokens / max(1, len(request.blocks))


def enough(request: PlaceRequest, config: PolicyConfig) -> float:
    """Cached tokens from which on a replica counts as holding the prompt."""
    return max(1.0, min(config.sticky_hit_fraction * request.prompt_tokens, config.sticky_hit_tokens))


def patience_s(request: PlaceRequest, prefill_rate: float, config: PolicyConfig) -> float:
    """T_max: what may be given up for the sake of a cached prefix, the more the longer its prefill takes."""
    worth_s = config.sticky_prefills * request.prompt_tokens / prefill_rate
    return min(config.sticky_extra_s, max(config.sticky_min_s, worth_s))
