"""What a model is asked for, measured: a quick rate with its uncertainty, and the means of its requests."""

import math

from scheduler.core.autoscale.capacity import Load
from scheduler.core.autoscale.state import DemandObservation

QUICK_S = 20.0
"""Time constant of the quick rate: a tripled load shows in a few seconds."""
BURST_S = 7.0
"""Time constant of the burst rate, which has most of a crowd in it ten seconds after it came."""
MIX_REQUESTS = 1000.0
"""Requests over which the means of lengths are taken: at cv 1 they are then good to 3 %."""
MIN_TOKENS = 1e-6
"""A mean of tokens below this is none: its square must not vanish."""


class DemandMeter:
    """Exponential averages of one model's arrivals."""

    def __init__(self) -> None:
        self.rate = 0.0
        """Arrivals a second, over about QUICK_S."""
        self.burst = 0.0
        """The same over about BURST_S."""
        self._prompt = self._uncached = self._uncached_sq = 0.0
        self._output = self._output_sq = 0.0
        self._seen = 0.0

    def observe(self, seen: DemandObservation, elapsed_s: float) -> None:
        """Take what came in the last `elapsed_s` seconds."""
        if elapsed_s > 0.0:
            weight = 1.0 - math.exp(-elapsed_s / QUICK_S)
            self.rate += weight * (seen.arrivals / elapsed_s - self.rate)
            weight = 1.0 - math.exp(-elapsed_s / BURST_S)
            self.burst += weight * (seen.arrivals / elapsed_s - self.burst)
        if seen.arrivals:
            self._seen = min(self._seen + seen.arrivals, MIX_REQUESTS)
            weight = min(1.0, seen.arrivals / self._seen)
            self._prompt += weight * (seen.prompt_tokens - self._prompt)
            self._uncached += weight * (seen.uncached_tokens - self._uncached)
            self._uncached_sq += weight * (seen.uncached_sq - self._uncached_sq)
            self._output += weight * (seen.output_tokens - self._output)
            self._output_sq += weight * (seen.output_sq - self._output_sq)

    @property
    def rate_sigma(self) -> float:
        """Standard deviation of the quick rate of Poisson arrivals."""
        return _sigma(self.rate, QUICK_S)

    @property
    def burst_sigma(self) -> float:
        """The same of the burst rate."""
        return _sigma(self.burst, BURST_S)

    def load(self, rate: float) -> Load:
        """Requests like those seen lately, `rate` of them a second."""
        return Load(
            rate,
            self._prompt,
            self._uncached,
            self._output,
            _cv2(self._uncached, self._uncached_sq),
            _cv2(self._output, self._output_sq),
        )


def _sigma(rate: float, memory_s: float) -> float:
    """Of an exponential average of Poisson arrivals: sqrt(lambda / 2 tau)."""
    return math.sqrt(max(rate, 1.0 / memory_s) / (2.0 * memory_s))


def _cv2(mean: float, mean_square: float) -> float:
    """Squared coefficient of variation; 0 where the mean square is not known, or the mean is no part of a token."""
    return max(0.0, mean_square / (mean * mean) - 1.0) if mean >= MIN_TOKENS else 0.0
