"""What a model is asked for, measured: a quick rate with its uncertainty, and the means of its requests."""

import math

from scheduler.core.autoscale.capacity import Load
from scheduler.core.autoscale.state import DemandSeen

QUICK_S = 20.0
"""Time constant of the quick rate: a tripled load shows in a few seconds."""
MIX_REQUESTS = 1000.0
"""Requests over which the means of lengths are taken: at cv 1 they are then good to 3 %."""


class DemandMeter:
    """Exponential averages of one model's arrivals."""

    def __init__(self) -> None:
        self.rate = 0.0
        """Arrivals a second, over about QUICK_S."""
        self._prompt = self._uncached = self._uncached_sq = self._output = 0.0
        self._seen = 0.0

    def observe(self, seen: DemandSeen, elapsed_s: float) -> None:
        """Take what came in the last `elapsed_s` seconds."""
        if elapsed_s > 0.0:
            weight = 1.0 - math.exp(-elapsed_s / QUICK_S)
            self.rate += weight * (seen.arrivals / elapsed_s - self.rate)
        if seen.arrivals:
            self._seen = min(self._seen + seen.arrivals, MIX_REQUESTS)
            weight = min(1.0, seen.arrivals / self._seen)
            self._prompt += weight * (seen.prompt_tokens - self._prompt)
            self._uncached += weight * (seen.uncached_tokens - self._uncached)
            self._uncached_sq += weight * (seen.uncached_sq - self._uncached_sq)
            self._output += weight * (seen.output_tokens - self._output)

    @property
    def rate_sigma(self) -> float:
        """Standard deviation of the quick rate of Poisson arrivals: sqrt(lambda / 2 tau)."""
        return math.sqrt(max(self.rate, 1.0 / QUICK_S) / (2.0 * QUICK_S))

    def load(self, rate: float) -> Load:
        """Requests like those seen lately, `rate` of them a second."""
        mean = self._uncached
        cv2 = self._uncached_sq / (mean * mean) - 1.0 if mean > 0.0 else 0.0
        return Load(rate, self._prompt, mean, self._output, max(0.0, cv2))
