"""Measured demand for a model: arrival rates with their uncertainty, and the means of its requests."""

import math

from scheduler.core.autoscale.capacity import Load
from scheduler.core.autoscale.state import DemandObservation

QUICK_S = 20.0
"""Time constant of the quick rate, in seconds: a tripled load shows in a few seconds."""
BURST_S = 7.0
"""Time constant of the burst rate, in seconds: ten seconds after a sudden increase it includes most of it."""
MIX_REQUESTS = 1000.0
"""Requests over which the means of lengths are taken; with a coefficient of variation of 1 their error is 3 %."""
MIN_TOKENS = 1e-6
"""Mean tokens below which the coefficient of variation is taken as 0, so that the squared mean does not underflow."""


class DemandMeter:
    """Exponential averages of one model's arrivals."""

    def __init__(self) -> None:
        self.rate = 0.0
        """Arrivals per second, averaged over about QUICK_S."""
        self.burst = 0.0
        """Arrivals per second, averaged over about BURST_S."""
        self._prompt = self._uncached = self._uncached_sq = 0.0
        self._output = self._output_sq = 0.0
        self._seen = 0.0

    def observe(self, seen: DemandObservation, elapsed_s: float) -> None:
        """Take the demand of the last `elapsed_s` seconds."""
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
    def recent(self) -> float:
        """Requests on which the quick rate rests, those of about the last QUICK_S: no more than have arrived."""
        return self.rate * QUICK_S

    @property
    def rate_sigma(self) -> float:
        """Standard deviation of the quick rate for Poisson arrivals."""
        return _sigma(self.rate, QUICK_S)

    @property
    def burst_sigma(self) -> float:
        """Standard deviation of the burst rate for Poisson arrivals."""
        return _sigma(self.burst, BURST_S)

    def load(self, rate: float) -> Load:
        """A load of `rate` requests per second like those observed."""
        return Load(
            rate,
            self._prompt,
            self._uncached,
            self._output,
            _cv2(self._uncached, self._uncached_sq),
            _cv2(self._output, self._output_sq),
        )


def _sigma(rate: float, memory_s: float) -> float:
    """Standard deviation of an exponential average of Poisson arrivals: sqrt(lambda / 2 tau)."""
    return math.sqrt(max(rate, 1.0 / memory_s) / (2.0 * memory_s))


def _cv2(mean: float, mean_square: float) -> float:
    """Squared coefficient of variation; 0 when the mean square is not known or the mean is below MIN_TOKENS."""
    return max(0.0, mean_square / (mean * mean) - 1.0) if mean >= MIN_TOKENS else 0.0
