"""How many requests will come by the time a woken replica serves: level, damped trend, time of day, and how sure.

Holt-Winters with a damped additive trend and a multiplicative season (Hyndman and Athanasopoulos, "Forecasting",
ch. 8.3), updated once per bin of arrivals. The season belongs to a place in the day and starts at 1: without a day of
history the forecast is level and trend alone. Its uncertainty is not assumed: every forecast is kept and compared
with what came.
"""

import math
from collections import deque

import msgspec

from scheduler.core.autoscale.capacity import MIN_RATE

MIN_FACTOR = 0.05
"""No place of the day is taken to be quieter than this share of the mean: dividing by it must stay sane."""


class Smoothing(msgspec.Struct, frozen=True):
    """How quickly each part follows."""

    bin_s: float = 30.0
    """Arrivals are counted in bins of this length."""
    day_s: float = 86_400.0
    """Length of the season."""
    seasons: int = 96
    """Places in the day that have a factor of their own (15 minutes each)."""
    level: float = 0.25
    trend: float = 0.05
    damping: float = 0.9
    """The trend fades by this each bin of the horizon."""
    season: float = 0.3
    """Weight of a new day's factor against the days before."""
    error: float = 0.1
    """Weight of a new error in the running variance."""


class Forecast(msgspec.Struct, frozen=True):
    """Arrivals a second to expect."""

    rate: float
    """The largest expected within the horizon."""
    sigma: float
    """Standard deviation of the true rate around that, from past errors at this horizon."""

    def upper(self, z: float) -> float:
        """Rate that is exceeded with the probability that belongs to `z` standard deviations; 0 below MIN_RATE."""
        rate = self.rate + z * self.sigma
        return rate if rate >= MIN_RATE else 0.0


class Forecaster:
    """Arrival-rate forecast of one model at one horizon."""

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
        """Whether it has seen enough bins to say anything."""
        return self._bins > 1

    def count(self, arrivals: int, time_of_day_s: float) -> None:
        """Take one whole bin of arrivals that ended at `time_of_day_s`."""
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
            # What a count of a Poisson process with exactly that rate would miss by is no error of the forecast:
            # the laws of capacity allow for it already.
            excess = (rate - made) ** 2 - made / self._set.bin_s
            self._variance += self._set.error * (excess - self._variance)
        self._bins += 1
        self._learn_season(rate, middle, time_of_day_s)
        self._made.append(self._at(self._ahead, time_of_day_s))

    def forecast(self, time_of_day_s: float) -> Forecast:
        """What to expect within the horizon from `time_of_day_s`, the end of the last bin."""
        rate = max(self._at(step, time_of_day_s) for step in range(1, self._ahead + 1))
        return Forecast(rate, math.sqrt(max(0.0, self._variance)))

    def _at(self, step: int, time_of_day_s: float) -> float:
        damping = self._set.damping
        drift = self._trend * damping * (1.0 - damping**step) / (1.0 - damping)
        later = time_of_day_s + (step - 0.5) * self._set.bin_s
        return max(0.0, self._level + drift) * self._factor(later)

    def _factor(self, time_of_day_s: float) -> float:
        """The season's factor, interpolated between the middles of its places."""
        place = (time_of_day_s % self._set.day_s) / self._set.day_s * self._set.seasons - 0.5
        low = math.floor(place)
        share = place - low
        count = self._set.seasons
        return self._season[low % count] * (1.0 - share) + self._season[(low + 1) % count] * share

    def _learn_season(self, rate: float, middle: float, end: float) -> None:
        """Collect the rate of the bin's place in the day; a whole day later all factors move together."""
        place = int((middle % self._set.day_s) / self._set.day_s * self._set.seasons)
        self._sums[place] += rate
        self._counts[place] += 1
        if self._bins % round(self._set.day_s / self._set.bin_s) == 0:
            self._close_day(end)

    def _close_day(self, time_of_day_s: float) -> None:
        """Factors move towards what this day was like; the level is restated so that the forecast does not jump."""
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
