"""The time of an engine's step: the one formula that the scheduler's predictions and the simulated engine share.

    t_step = alpha + experts*(1 - (1 - k/E)^(B*p)) + beta*B + gamma*KV + u/R + q*u*(c + u/2)

B sequences decode p = 1 + drafts positions each and read KV tokens of cache; u new prompt tokens, after c cached ones,
are computed in the same step. `Capacity` holds the parameters; docs/simulator.md says how they are fitted. Beside the
steps, each request takes `Capacity.request_s` seconds (h) that delay only its own first token.
"""

import math

from workers.wire import Capacity


def drafts_of(capacity: Capacity) -> int:
    """Draft tokens a step; where the profile does not say, the fewest that reach its accepted tokens a step."""
    return capacity.draft_tokens or max(0, math.ceil(capacity.accept_per_step - 1.0))


def experts_touched(share: float, tokens: float) -> float:
    """Expected share of a layer's experts that `tokens` tokens use, each choosing a `share` of them at random.

    1 - (1 - k/E)^n: the chance that one expert of E is among the k of at least one of n tokens. Routing of real text
    is skewed, so the true share rises more slowly.
    """
    return 1.0 - math.pow(1.0 - share, tokens)


def decode_step_s(capacity: Capacity, sequences: float, kv_tokens: float) -> float:
    """Seconds of a step that decodes `sequences` over `kv_tokens` tokens of KV cache, without prefill."""
    line = (
        capacity.step_base_s + capacity.step_per_seq_s * sequences + capacity.step_per_kv_token_s * kv_tokens
    )
    if not capacity.step_experts_s:
        return line
    positions = sequences * (1 + drafts_of(capacity))
    return line + capacity.step_experts_s * experts_touched(capacity.expert_share, positions)


def sequence_s(capacity: Capacity, sequences: float) -> float:
    """Seconds by which one more sequence lengthens a step that decodes `sequences`, without its KV cache."""
    return decode_step_s(capacity, sequences + 1, 0) - decode_step_s(capacity, sequences, 0)


def context_pairs(uncached: float, prompt: float) -> float:
    """Pairs of a new token and a token before it, u*(c + u/2), where `uncached` of `prompt` tokens are computed."""
    return uncached * (prompt - uncached / 2)


def prefill_s(capacity: Capacity, uncached: float, prompt: float) -> float:
    """Seconds of an engine's time to compute the last `uncached` of `prompt` tokens: u/R + q*u*(c + u/2).

    With attention data parallelism this is the engine's time while all ranks are busy; a prompt's own rank takes
    `Capacity.dp_ranks` times as long.
    """
    pairs = context_pairs(uncached, prompt)
    return uncached / capacity.prefill_tokens_per_s + capacity.prefill_pair_s * pairs


def own_prefill_s(capacity: Capacity, prompt: float) -> float:
    """Seconds to the first token of a request alone on an idle engine that has cached nothing of its prompt, without
    alpha: the part of its time to first token that its TTFT target comes on top of."""
    return capacity.dp_ranks * prefill_s(capacity, prompt, prompt) + capacity.request_s
