"""What a forward pass costs, and what speculation yields: pure functions of counts."""

import math
import random

from workers.step_time import decode_step_s
from workers.wire import Capacity


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


class StepCost:
    """Seconds of a step for one capacity, by `workers/step_time.py`; `base(B)` is tabulated, because it is read in
    each step."""

    __slots__ = ("_base", "per_kv_token", "per_pair", "per_prefill_token")

    def __init__(self, capacity: Capacity) -> None:
        self.per_kv_token = capacity.step_per_kv_token_s
        """gamma: seconds per token of KV cache that a step reads."""
        self.per_prefill_token = 1.0 / capacity.prefill_tokens_per_s
        """1/R: seconds per uncached prompt token."""
        self.per_pair = capacity.prefill_pair_s
        """q: seconds per pair of a new prompt token and a token before it."""
        self._base = [decode_step_s(capacity, batch, 0) for batch in range(capacity.max_num_seqs + 1)]

    def base(self, batch: int) -> float:
        """Seconds of a step with `batch` decoding sequences, before KV reads and prefill."""
        return self._base[batch]

    def prefill(self, tokens: int, pairs: float) -> float:
        """Return the seconds for uncached prompt tokens; `pairs` as in `step_time.context_pairs`."""
        return self.per_prefill_token * tokens + self.per_pair * pairs

    def seconds(self, batch: int, kv_tokens: float, prefill_s: float) -> float:
        """Return the seconds of a step by the whole formula."""
        return self._base[batch] + self.per_kv_token * kv_tokens + prefill_s


def noise(cv: float, steps: int, rng: random.Random) -> float:
    """A factor of mean 1 for the time of `steps` steps together, each lognormal with coefficient of variation `cv`."""
    if cv <= 0:
        return 1.0
    variance = math.log1p(cv * cv / steps)
    return rng.lognormvariate(-variance / 2, math.sqrt(variance))
