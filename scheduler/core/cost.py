"""The cost of a placement: the formulas of the score.

They apply to one replica in plain numbers and to the columns of a pool: `T` is a float or a vector.
"""

from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from scheduler.core.config import PolicyConfig
from scheduler.wire import PlaceRequest

Vector = NDArray[np.float64]
T = TypeVar("T", float, Vector)


class ScoreInputs(NamedTuple, Generic[T]):
    """What the score needs of a replica, as floats, or of all rows of a pool, as vectors. Times are monotonic
    seconds."""

    awake_until: T
    """Until when the replica takes requests without another heartbeat; -inf = it is not ready, or has no free
    slot."""
    kv_room: T
    """Tokens (of a prompt what is not cached, and the answer) that still fit into its KV cache."""
    prefill_done_at: T
    """When its prefill backlog should be done."""
    min_backlog_s: T
    """Seconds of prefill backlog that are assumed even after `prefill_done_at`."""
    ttft_offset_s: T
    """Seconds of the TTFT outside the prefill: the capacity's h, and the learnt correction r."""
    prefill_s_per_token: T
    """Seconds per uncached prompt token of a request alone: 1/R, times the ranks of attention data parallelism."""
    prefill_pair_s: T
    """The same per pair of an uncached prompt token and a token before it: q, times the ranks."""
    prefill_weight: T
    """1 + eta*D/ranks: seconds of prefill count once for the request, and eta times for each of the D running ones,
    which they delay by the engine's time, a rank's share of these seconds."""
    itl: T
    """Seconds per output token with one more sequence, without that sequence's own KV cache."""
    itl_cost: T
    """Seconds per output token, with the delay of the running requests weighted by eta."""
    itl_per_kv: T
    """Added seconds per output token and token of KV cache."""


class Gate(NamedTuple, Generic[T]):
    """What a replica takes of one band, whose target per token its batch keeps, as floats or as vectors."""

    open_until: T
    """`ScoreInputs.awake_until` while its batch keeps the target: it takes any request; else -inf."""
    warm_until: T
    """The same, while its batch nearly keeps the target: it takes requests whose prompt it holds."""
    room: T
    """Tokens of context, cached or not, whose reading still fits into the target time per token."""


def own_prefill_s(prompt: float, uncached: T, inputs: ScoreInputs[T]) -> T:
    """`u/R + q*u*(n - u/2)`: seconds to compute the last u of n prompt tokens (`workers.step_time.prefill_s`)."""
    return uncached * (inputs.prefill_s_per_token + inputs.prefill_pair_s * (prompt - uncached / 2))


def ttft_s(prefill_s: T, backlog_s: T, inputs: ScoreInputs[T]) -> T:
    """Seconds to the first token: `backlog + prefill + h + r`. The backlog shrinks as time passes."""
    return prefill_s + backlog_s + inputs.ttft_offset_s


def cost_s(prompt: float, output: float, prefill_s: T, backlog_s: T, inputs: ScoreInputs[T]) -> T:
    """J in seconds, for n prompt tokens, of which those not cached take `prefill_s`, and o output tokens.

    `J = backlog + prefill + h + r + o*ITL + eta*D*(prefill + o*s/accept)`, with ITL from Pool.refresh for D+1 sequences
    over K+n tokens, and s the seconds by which one more sequence lengthens a step.
    """
    return (
        prefill_s * inputs.prefill_weight
        + backlog_s
        + inputs.ttft_offset_s
        + output * inputs.itl_cost
        + prompt * output * inputs.itl_per_kv
    )


def tokens_per_block(request: PlaceRequest) -> float:
    """Tokens in each of the request's blocks; text blocks share the prompt evenly."""
    return request.block_tokens or request.prompt_tokens / max(1, len(request.blocks))


def sticky_threshold(request: PlaceRequest, config: PolicyConfig) -> float:
    """Cached tokens from which a replica counts as holding the prompt."""
    return max(1.0, min(config.sticky_hit_fraction * request.prompt_tokens, config.sticky_hit_tokens))


def sticky_limit_s(request: PlaceRequest, prefill_rate: float, config: PolicyConfig) -> float:
    """T_max: seconds that a cached prefix may cost; the more, the longer its prefill takes."""
    worth_s = config.sticky_prefills * request.prompt_tokens / prefill_rate
    return min(config.sticky_extra_s, max(config.sticky_min_s, worth_s))
