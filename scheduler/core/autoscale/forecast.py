"""Forecasts the arrival rate at the time when a woken replica serves, with its uncertainty.

Holt-Winters with a damped additive trend and a multiplicative season (Hyndman and Athanasopoulos, "Forecasting", ch.
8.3), updated once per bin of arrivals. The season has a factor for each part of the day and starts at 1: without a
day of history the forecast consists of level and trend. Its uncertainty is measured: every forecast is compared with
the later arrivals.
"""

import math
from collections import deque

import msgspec

from scheduler.core.autoscale.capacity import MIN_RATE

MIN_FACTOR = 0.05
"""Smallest seasonal factor, so that the division by it stays stable."""


class Smoothing(msgspec.Struct, frozen=True):
    """Smoothing parameters of the forecast."""

    bin_s: float = 30.0
    """Length of a bin of arrivals, in seconds."""
    day_s: float = 86_400.0
    """Length of the season, in seconds."""
    seasons: int = 96
    """Parts of the day with a factor of their own (15 minutes each)."""
    level: float = 0.25
    trend: float = 0.05
    damping: float = 0.9
    """Factor by which the trend decays per bin of the horizon."""
    season: float = 0.3
    """Weight of a new day's factor."""
    error: float = 0.1
    """Weight of a new error in the running variance."""


class Forecast(msgspec.Struct, frozen=True):
    """Expected arrivals per second."""

    rate: float
    """The largest rate within the horizon."""
    sigma: float
    """Standard deviation of the true rate, from past errors at this horizon."""

    def upper(self, z: float) -> float:
        """The rate plus `z` standard deviations; 0 below MIN_RATE."""
        rate = self.rate + z * self.sigma
        return rate if rate >= MIN_RATE else 0.0


class Forecaster:
    """Forecasts the arrival rate of one model at one horizon."""

    def __init__(self, horizon_s: float, smoothing: Smoothing) -> None:
        self._set = smoothing
        self._ahead = max(1, math.ceil(horizon_s / smoothing.bin_s))
        self._season = [1.0] * smoothing.seasons
        self._sums = [0.0] * smoothing.seasons
        self._counts = [0] * smoothing.seasons
        self._days = 0
        self._level = 0.0
        self._trend = 0.0
        self._variance = 0.0
        self._bins = 0
        self._made: deque[float] = deque(maxlen=self._ahead)

    @property
    def ready(self) -> bool:
        """Whether at least two bins were counted."""
        return self._bins > 1

    def count(self, arrivals: int, time_of_day_s: float) -> None:
        """Take a whole bin of arrivals that ended at `time_of_day_s`."""
        middle = time_of_day_s - self._set.bin_s / 2.0
        rate = arrivals / self._set.bin_s
        deseasoned = rate / self._factor(middle)
        if self._bins == 0:
            self._level = deseasoned
        else:
            before, fade = self._level, self._set.damping * self._trend
            expected = before + fade
            self._level = expected + self._set.level * (deseasoned - expected)
            self._trend = fade + self._set.trend * (self._level - before - fade)
        if len(self._made) == self._ahead:
            made = self._made[0]
            # The variance of a Poisson count with this rate is no forecast error: the capacity laws include it.
            excess = (rate - made) ** 2 - made / self._set.bin_s
            self._variance += self._set.error * (excess - self._variance)
        self._bins += 1
        self._learn_season(rate, middle, time_of_day_s)
        self._made.append(self._at(self._ahead, time_of_day_s))

    def forecast(self, time_of_day_s: float) -> Forecast:
        """The forecast for the horizon from `time_of_day_s`, the end of the last bin."""
        rate = max(self._at(step, time_of_day_s) for step in range(1, self._ahead + 1))
        return Forecast(rate, math.sqrt(max(0.0, self._variance)))

    def _at(self, step: int, time_of_day_s: float) -> float:
        damping = self._set.damping
        drift = self._trend * damping * (1.0 - damping**step) / (1.0 - damping)
        later = time_of_day_s + (step - 0.5) * self._set.bin_s
        return max(0.0, self._level + drift) * self._factor(later)

    def _factor(self, time_of_day_s: float) -> float:
        """The seasonal factor, interpolated between the middles of the parts of the day."""
        place = (time_of_day_s % self._set.day_s) / self._set.day_s * self._set.seasons - 0.5
        low = math.floor(place)
        share = place - low
        count = self._set.seasons
        return self._season[low % count] * (1.0 - share) + self._season[(low + 1) % count] * share

    def _learn_season(self, rate: float, middle: float, end: float) -> None:
        """Collect the rate of a bin; after a whole day all factors are updated together."""
        place = int((middle % self._set.day_s) / self._set.day_s * self._set.seasons)
        self._sums[place] += rate
        self._counts[place] += 1
        if self._bins % round(self._set.day_s / self._set.bin_s) == 0:
            self._close_day(end)

    def _close_day(self, time_of_day_s: float) -> None:
        """Update the factors with the past day, and rescale the level so that the forecast does not jump."""
        mean = math.fsum(self._sums) / max(1, sum(self._counts))
        weight = self._set.season if self._days else 1.0
        before = self._factor(time_of_day_s)
        if mean > 0.0:
            for place, count in enumerate(self._counts):
                if count:
                    factor = max(self._sums[place] / count / mean, MIN_FACTOR)
                    self._season[place] += weight * (factor - self._season[place])
        restate = before / self._factor(time_of_day_s)
        self._level *= restate
        self._trend = self._trend * restate if self._days else 0.0
        self._days += 1
        self._sums = [0.0] * self._set.seasons
        self._counts = [0] * self._set.seasons
