"""Learnt corrections of a replica's step model (workers/step_time.py), and the accuracy of predictions.

Formulas: docs/scheduling.md. Prefill beside decode, as in the capacity laws, with phi the share of the engine's time
that goes to prefill (vLLM mixes prefill chunks into decode steps, so decoding sequences see phi as slower steps):

    ITL = decode_step_s(B, KV) / (accept * (1 - phi))
"""

import math
from dataclasses import dataclass, field

from scheduler.core.replica_meter import NO_READING, Reading

MAX_PREFILL_SHARE = 0.8
"""Largest value of phi: beyond it the formula says little."""
PREFILL_SHARE_S = 10.0
"""Time constant of the running mean of phi, in seconds."""
BOUND_QUANTILE = 0.9
"""Share of answers that should stay within the stated bound."""
BOUND_STEP = 0.02
"""Step of the bound, in units of log(observed / predicted)."""
REPORT_GAIN = 0.01
"""Smallest weight of one answer in the report: about the last hundred answers count."""
MIN_TTFT_S = 1e-3
"""Shortest time to first token that is predicted."""


@dataclass(slots=True)
class Baseline:
    """Values at the start of a placement that later observations are compared with."""

    opened_at: float = 0.0
    """When the placement was activated here; later than it was placed if a client announced it."""
    prefix_blocks: int = 0
    """Blocks of the prompt that the replica was believed to hold before."""
    prefix_used_at: float = float("-inf")
    """When these blocks were last used there; -inf = never."""
    reading: Reading = NO_READING
    """The replica's meter at the first token, or at a later observation of the answer."""


@dataclass(slots=True)
class PrefillShare:
    """phi: the share of a replica's time that goes to prefill, a running mean over PREFILL_SHARE_S."""

    _value: float = 0.0
    _at: float = 0.0

    def add(self, seconds: float, now: float) -> None:
        """Add seconds of prefill that were routed to the replica."""
        self._value = self.at(now) + seconds / PREFILL_SHARE_S
        self._at = now

    def at(self, now: float) -> float:
        """The share at `now`, from 0 to MAX_PREFILL_SHARE."""
        faded = self._value * math.exp(-max(0.0, now - self._at) / PREFILL_SHARE_S)
        return min(faded, MAX_PREFILL_SHARE)


@dataclass(slots=True)
class Accuracy:
    """Recent errors of one prediction, and a bound that a share BOUND_QUANTILE of answers keeps.

    The bound is `predicted * exp(width)`. `width` follows the quantile of log(observed / predicted) by stochastic
    approximation (Robbins and Monro 1951): up by BOUND_QUANTILE steps when exceeded, down by 1 - BOUND_QUANTILE when
    kept.
    """

    count: int = 0
    mape: float = 0.0
    """Mean absolute error as a share of the observed value."""
    bias_s: float = 0.0
    """Mean of observed minus predicted, in seconds."""
    coverage: float = BOUND_QUANTILE
    """Share of answers within the bound that was stated for them."""
    width: float = field(default=math.log(2.0))

    def learn(self, predicted_s: float, observed_s: float) -> None:
        """Take one answer."""
        observed_s = max(observed_s, MIN_TTFT_S)
        within = observed_s <= self.bound(predicted_s)
        self.count += 1
        gain = max(REPORT_GAIN, 1.0 / self.count)
        self.mape += gain * (abs(observed_s - predicted_s) / observed_s - self.mape)
        self.bias_s += gain * (observed_s - predicted_s - self.bias_s)
        self.coverage += gain * (within - self.coverage)
        self.width = max(0.0, self.width + BOUND_STEP * (BOUND_QUANTILE - within))

    def bound(self, predicted_s: float) -> float:
        """Seconds within which a share BOUND_QUANTILE of such answers stays."""
        return max(predicted_s, MIN_TTFT_S) * math.exp(self.width)


@dataclass(slots=True)
class PredictionReport:
    """Accuracy of the predictions for one model."""

    ttft: Accuracy = field(default_factory=Accuracy)
    itl: Accuracy = field(default_factory=Accuracy)
