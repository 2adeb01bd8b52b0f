"""What an answer will feel like on a replica: the step model, corrected by what was observed, and how well it does.

Pure: every time is passed in. Formulas: DESIGN §6; prefill beside decode as in the capacity laws,
`ITL = (alpha + beta*B + gamma*KV) / (accept * (1 - phi))`, where phi is the share of the engine's time that goes to
prefill. vLLM mixes prefill chunks into decode steps, so decoding sequences see phi as slower steps.
"""

import math
from dataclasses import dataclass, field

from workers.wire import Capacity

MAX_PREFILL_SHARE = 0.8
"""Above this the formula says little; answers are slow at any rate."""
PREFILL_SHARE_S = 10.0
"""Time constant of the running mean of phi."""
BOUND_QUANTILE = 0.9
"""Share of first tokens that should come within the stated bound."""
BOUND_STEP = 0.02
REPORT_GAIN = 0.01
"""Weight of one answer in the report: about the last hundred count."""
MIN_TTFT_S = 1e-3


def step_s(capacity: Capacity, sequences: float, kv_tokens: float) -> float:
    """Predicted seconds of one decode step of `sequences` over `kv_tokens` of KV cache."""
    return (
        capacity.step_base_s + capacity.step_per_seq_s * sequences + capacity.step_per_kv_token_s * kv_tokens
    )


@dataclass(slots=True)
class Baseline:
    """What the fleet writes down when a placement begins, to learn from how it goes."""

    raw_ttft_s: float = -1.0
    """Predicted without the residual; negative = not predicted here: a client announced it."""
    raw_itl_s: float = -1.0
    opened_at: float = 0.0
    """When it began to count here; later than it was placed if a client announced it."""
    prefix_blocks: int = 0
    """Blocks of the prompt that the replica was believed to hold before this ..."""
    prefix_used_at: float = float("-inf")
    """... and when they were last used there."""


@dataclass(slots=True)
class Residual:
    """A running mean of errors: each counts at most `limit`, and without news it fades by half in `half_life_s`."""

    gain: float
    limit: float
    half_life_s: float
    _value: float = 0.0
    _at: float = float("-inf")

    def learn(self, error: float, now: float) -> None:
        """One observation; an outlier weighs no more than `limit`."""
        before = self.at(now)
        self._value = before + self.gain * (min(max(error, -self.limit), self.limit) - before)
        self._at = now

    def at(self, now: float) -> float:
        """The mean, faded."""
        if self._value == 0.0:
            return 0.0
        return self._value * math.exp2(-max(0.0, now - self._at) / self.half_life_s)


@dataclass(slots=True)
class PrefillShare:
    """phi: the share of a replica's time that prefill takes, a running mean over PREFILL_SHARE_S."""

    _value: float = 0.0
    _at: float = 0.0

    def add(self, seconds: float, now: float) -> None:
        """So many seconds of prefill were routed there."""
        self._value = self.at(now) + seconds / PREFILL_SHARE_S
        self._at = now

    def at(self, now: float) -> float:
        """The share, 0 to MAX_PREFILL_SHARE."""
        faded = self._value * math.exp(-max(0.0, now - self._at) / PREFILL_SHARE_S)
        return min(faded, MAX_PREFILL_SHARE)


@dataclass(slots=True)
class Accuracy:
    """How far predictions of one quantity were off lately, and a bound that a share BAND of answers keeps.

    The bound is `predicted * exp(width)`; `width` follows the BAND quantile of log(observed / predicted) by
    stochastic approximation (Robbins and Monro 1951): up by BAND when exceeded, down by 1 - BAND when kept.
    """

    count: int = 0
    mape: float = 0.0
    """Mean absolute error as a share of what was observed."""
    bias_s: float = 0.0
    """Mean of observed minus predicted, in seconds."""
    coverage: float = BOUND_QUANTILE
    """Share of answers within the bound that was stated for them."""
    width: float = field(default=math.log(2.0))

    def learn(self, predicted_s: float, observed_s: float) -> None:
        """One answer."""
        observed_s = max(observed_s, MIN_TTFT_S)
        within = observed_s <= self.bound(predicted_s)
        self.count += 1
        gain = max(REPORT_GAIN, 1.0 / self.count)
        self.mape += gain * (abs(observed_s - predicted_s) / observed_s - self.mape)
        self.bias_s += gain * (observed_s - predicted_s - self.bias_s)
        self.coverage += gain * (within - self.coverage)
        self.width = max(0.0, self.width + BOUND_STEP * (BOUND_QUANTILE - within))

    def bound(self, predicted_s: float) -> float:
        """Seconds that a share BAND of such answers stays within."""
        return max(predicted_s, MIN_TTFT_S) * math.exp(self.width)


@dataclass(slots=True)
class PredictionReport:
    """How well placement predicts for one model."""

    ttft: Accuracy = field(default_factory=Accuracy)
    itl: Accuracy = field(default_factory=Accuracy)
