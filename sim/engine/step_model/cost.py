"""What a forward pass costs, and what speculation yields: pure functions of counts.

    t_step = max(W(B)/BW_eff, F/FLOPS_eff) + alpha + beta*B + gamma*KV + u/R

B sequences decoding, KV tokens of cache that they read, u uncached prompt tokens computed in the same pass. Linear in
B because published sweeps are (Llama-3.3-70B, 1 to 256 sequences: ITL = 16.6 + 0.188 B ms, R^2 0.998). Where the
catalog says how the weights divide into dense ones and experts, the roofline bends that line (see `StepCost`).
"""

import math
import random

from workers.wire import Capacity, Roofline


def experts_touched(experts: int, per_token: int, tokens: int) -> float:
    """Expected share of a layer's experts that `tokens` tokens activate, choosing independently and uniformly.

    1 - (1 - k/E)^B: the chance that one expert of E is among the k of at least one of B tokens.
    """
    return 1.0 - (1.0 - per_token / experts) ** tokens


def acceptance_probability(mean_tokens: float, drafts: int) -> float:
    """Chance p that one draft token is accepted, given the mean tokens of a step with `drafts` drafts.

    Drafts are accepted until the first refusal, so a step yields 1 + p + p^2 + .. + p^drafts tokens on average
    (Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", eq. 1). Solved by bisection.
    """
    if drafts < 1 or mean_tokens <= 1.0:
        return 0.0
    if mean_tokens >= 1.0 + drafts:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if sum(middle**power for power in range(drafts + 1)) < mean_tokens:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def drafts_of(capacity: Capacity) -> int:
    """Draft tokens a step; where the profile does not say, the fewest that reach its accepted tokens a step."""
    return capacity.draft_tokens or max(0, math.ceil(capacity.accept_per_step - 1.0))


class Speculation:
    """Number of steps that a sequence needs for its tokens, when each step yields 1 + a truncated geometric number."""

    __slots__ = ("_mean", "_overshoot", "_spread", "drafts")

    def __init__(self, mean_tokens: float, drafts: int) -> None:
        self.drafts = drafts
        p = acceptance_probability(mean_tokens, drafts)
        chances = [p**tokens * (1 - p) for tokens in range(drafts)] + [p**drafts]
        self._mean = sum((1 + extra) * chance for extra, chance in enumerate(chances))
        square = sum((1 + extra) ** 2 * chance for extra, chance in enumerate(chances))
        variance = square - self._mean**2
        self._overshoot = square / (2 * self._mean) - 0.5
        self._spread = math.sqrt(max(0.0, variance) / self._mean**3)

    def steps(self, tokens: int, rng: random.Random) -> int:
        """Return the steps for `tokens` tokens: drawn from the renewal process's normal limit.

        Steps to pass m tokens have mean (m + overshoot)/mean and variance m*variance/mean^3 (Feller vol. II,
        XI.5).
        """
        if not self._spread:
            return -int(-tokens // self._mean)
        drawn = rng.gauss((tokens + self._overshoot) / self._mean, self._spread * math.sqrt(tokens))
        return min(tokens, max(-(-tokens // (1 + self.drafts)), round(drawn)))


def weights_seconds(roofline: Roofline, tokens: int) -> float:
    """Seconds to read the weights that `tokens` tokens need, W(B)/BW: the dense ones and the experts they touch."""
    touched = experts_touched(roofline.experts, roofline.per_token, tokens)
    return roofline.dense_s + roofline.experts_s * touched


class StepCost:
    """Seconds of a step for one capacity. `base(B)` is everything that depends on the batch alone.

    alpha and beta of the catalog are fitted through published figures at one sequence and at the full batch, weights
    and arithmetic included. Where the weights' division is known, `max(W/BW, F/FLOPS)` is taken out of that line so
    that both ends stay as published; what remains is the formula's own alpha and beta. F/FLOPS is `tokens / R`:
    prefill is bound by arithmetic, so its throughput is what the arithmetic reaches.
    """

    __slots__ = ("_base", "per_kv_token", "per_prefill_token")

    def __init__(self, capacity: Capacity) -> None:
        self.per_kv_token = capacity.step_per_kv_token_s
        """gamma: seconds per token of KV cache that a step reads."""
        self.per_prefill_token = 1.0 / capacity.prefill_tokens_per_s
        """1/R: seconds per uncached prompt token."""
        self._base = _with_roofline(capacity) if capacity.roofline is not None else _line(capacity)

    def base(self, batch: int) -> float:
        """Seconds of a step with `batch` decoding sequences, before KV reads and prefill."""
        return self._base[batch]

    def seconds(self, batch: int, kv_tokens: float, prefilled: int) -> float:
        """Return the seconds of a step by the whole formula."""
        return self._base[batch] + self.per_kv_token * kv_tokens + self.per_prefill_token * prefilled


def _line(capacity: Capacity) -> list[float]:
    """alpha + beta*B for every batch up to the largest."""
    alpha, beta = capacity.step_base_s, capacity.step_per_seq_s
    return [alpha + beta * batch for batch in range(capacity.max_num_seqs + 1)]


def _with_roofline(capacity: Capacity) -> list[float]:
    """The same line with the roofline in between: equal to it at one sequence and, unless the roofline alone is
    slower there, at the full batch."""
    line = _line(capacity)
    positions = 1 + drafts_of(capacity)
    roof = [_floor_seconds(capacity, batch * positions) for batch in range(len(line))]
    last = len(line) - 1
    if last < 2:
        return line
    first_rest, last_rest = max(0.0, line[1] - roof[1]), max(0.0, line[last] - roof[last])
    slope = max(0.0, (last_rest - first_rest) / (last - 1))
    return [line[0], *(roof[batch] + first_rest + slope * (batch - 1) for batch in range(1, last + 1))]


def _floor_seconds(capacity: Capacity, tokens: int) -> float:
    """max(W(B)/BW_eff, F/FLOPS_eff) for a step that computes `tokens` positions."""
    reading = weights_seconds(capacity.roofline, tokens) if capacity.roofline is not None else 0.0
    return max(reading, tokens / capacity.prefill_tokens_per_s)


def noise(cv: float, steps: int, rng: random.Random) -> float:
    """A factor of mean 1 for the time of `steps` steps together, each lognormal with coefficient of variation `cv`."""
    if cv <= 0:
        return 1.0
    variance = math.log1p(cv * cv / steps)
    return rng.lognormvariate(-variance / 2, math.sqrt(variance))
