"""Admission by prediction: whether a request will be served within its deadline.

The predicted wait is the work ahead of a request in fair order over the rate at which the pool drains its queue. The
rate is measured only while requests wait, because an idle pool says nothing about its limits, and per slot, so that
it follows the size of the pool at once. The remaining error is corrected by a running mean of observed over predicted
waits, per band.
"""

import math

from scheduler.core.predict import Accuracy
from scheduler.core.rules import BANDS, AdmissionRules
from scheduler.core.warm import WarmCapacity

MIN_WAIT_S = 0.05
"""Shortest wait that predictions are compared with; shorter waits count as this one."""
MAX_LOG_ERROR = math.log(16.0)
"""Largest logarithmic error that one observation contributes."""
MAX_LOG_RESIDUAL = math.log(4.0)
"""Largest logarithmic correction of a prediction."""


class DrainMeter:
    """Measures the weighted tokens that leave the queue per slot and second while requests wait."""

    def __init__(self, memory_s: float) -> None:
        self.placements = 0
        self._memory_s = memory_s
        self._work = 0.0
        self._slot_seconds = 0.0
        self._at = 0.0
        self._backlogged = False

    def advance(self, now: float, slots: int, backlogged: bool) -> None:
        """Advance to `now` with `slots` slots. The time since the last call counts if requests were queued then.

        `backlogged`: whether requests are still queued.
        """
        if self._backlogged and now > self._at:
            seconds = now - self._at
            fade = math.exp(-seconds / self._memory_s)
            self._work *= fade
            self._slot_seconds = self._slot_seconds * fade + seconds * slots
        self._at, self._backlogged = now, backlogged

    def on_place(self, work: float) -> None:
        """Count `work` weighted tokens that left the queue for a replica."""
        if self._backlogged:
            self._work += work
            self.placements += 1

    def rate(self, slots: int) -> float:
        """Weighted tokens per second that `slots` slots drain; 0 = not known."""
        return self._work / self._slot_seconds * slots if self._slot_seconds > 0 else 0.0


class Admission:
    """Predicts the waits of one model's queue and learns from them."""

    def __init__(self, rules: AdmissionRules) -> None:
        self.rules = rules
        self.drain = DrainMeter(rules.drain_memory_s)
        self.waits = Accuracy()
        """Accuracy of the predicted waits."""
        self._residuals = [0.0] * (2 * len(BANDS))

    def predict(self, work: float, pool: WarmCapacity, band: int, *, late: bool = False) -> float | None:
        """Seconds until `work` weighted tokens have left the queue; None when there is nothing to predict from.

        Timely and late requests of a band have separate residuals, because they are not served in the same order.
        """
        if pool.is_cold:
            return pool.ready_in_s
        if self.drain.placements < self.rules.min_observations or pool.ready == 0:
            return None
        rate = self.drain.rate(pool.slots)
        return work / rate * math.exp(self._residuals[2 * band + late]) if rate > 0 else None

    def residual(self, band: int, *, late: bool) -> float:
        """The present correction of predictions: the logarithm of observed over uncorrected wait."""
        return self._residuals[2 * band + late]

    def too_long(self, wait_s: float | None, deadline_s: float) -> bool:
        """Whether a request that would wait `wait_s` and may wait `deadline_s` is refused."""
        return self.rules.enabled and wait_s is not None and wait_s > deadline_s * self.rules.margin

    def observe(
        self, predicted_s: float | None, observed_s: float, residual: float, band: int, *, late: bool
    ) -> None:
        """Learn from a request that was placed or reached its deadline.

        `residual` is the correction that its prediction contained; the error is measured without it.
        """
        if predicted_s is None or max(predicted_s, observed_s) < MIN_WAIT_S:
            return
        predicted_s, observed_s = max(predicted_s, MIN_WAIT_S), max(observed_s, MIN_WAIT_S)
        self.waits.learn(predicted_s, observed_s)
        error = min(max(math.log(observed_s / predicted_s) + residual, -MAX_LOG_ERROR), MAX_LOG_ERROR)
        kind = 2 * band + late
        moved = self._residuals[kind] + self.rules.residual_step * (error - self._residuals[kind])
        self._residuals[kind] = min(max(moved, -MAX_LOG_RESIDUAL), MAX_LOG_RESIDUAL)
