"""The speed of one replica as its requests show it, starting from what its heartbeats state.

Every observation is a time that the step model (workers/step_time.py) divides into parts:

    observed = p*prefill + a*base + b*sequences + o*overhead + fixed

Each part is in seconds under the stated capacity: prefill is u/R with the attention over the context, base is alpha
with the experts, sequences is beta*B, overhead is what a first token needs beside the engine's steps (h), and fixed is
the reading of the KV cache, whose figure follows from bytes. What is learnt are the factors p, a, b and o. Accepted
tokens per step divide a, b and fixed alike, so a and b contain their error.

The estimator is an extended Kalman filter: a recursive least squares over the logarithms of the factors, with the
logarithm of the observed time as the measurement. Factors are then positive and free of units, and the gradient of a
factor is the share of its part in the predicted time, so each observation moves what it can tell about. It is

- *bounded*: a factor stays within LIMIT of the stated figure;
- *robust*: an error counts as at most OUTLIER standard deviations (Huber's loss), and the scatter is a median;
- *forgetting*: the variance of every factor grows by DRIFT with each observation, up to that of the start;
- *deterministic*: only observations change it.
"""

import math
from typing import NamedTuple

import msgspec

from workers.wire import Capacity

PRIOR_SD = math.log(3.0)
"""Standard deviation of a stated figure's logarithmic error: a factor of three is nothing unusual."""
ASSUMED_SD = math.log(30.0)
"""The same of a figure that is only assumed (`Capacity.assumed`)."""
STEP_CORRELATION = 0.8
"""Correlation of the errors of alpha and beta: most of what makes steps slower makes both larger. Without it a full
batch, where the two cannot be told apart, makes beta small at the cost of alpha, and the batch oscillates."""
LIMIT = math.log(10.0)
"""Largest logarithmic correction of a stated figure."""
ASSUMED_LIMIT = math.log(1000.0)
"""The same of a figure that is only assumed."""
DRIFT = 1e-4
"""Growth of a factor's variance with each observation. The steady gain is that of a mean over about twenty."""
OUTLIER = 2.5
"""Standard deviations beyond which an error counts no more."""
SCATTER_BOUNDS = (0.05, 0.5)
"""Least and largest median of an observation's relative error."""
SCATTER_STEP = 0.05
"""Relative step of the tracked median."""
SD_OF_MEDIAN = 1.4826
"""Standard deviation of normal errors over the median of their absolute values."""
JITTER_S = 0.005
"""Standard deviation of an observed time beside the engine: network, and frames that wait for others."""
LEARNT_SD = math.log(1.25)
"""Standard deviation of the factors of prefill and of a step's base at which the speed counts as learnt."""
MIN_TIME_S = 1e-4
"""Shortest time that is an observation."""
OVERHEAD_S = 0.02
"""Stated overhead of a first token where the profile has none: network and frames."""


class Parts(NamedTuple):
    """The parts of an observed time, in seconds under the stated capacity."""

    prefill: float
    base: float
    sequences: float
    overhead: float = 0.0
    fixed: float = 0.0
    """The part without a factor."""


class Factors(NamedTuple):
    """Learnt over stated seconds."""

    prefill: float
    base: float
    sequences: float
    overhead: float


COUNT = len(Factors._fields)


class CapacityEstimate:
    """What is learnt of one replica's speed."""

    __slots__ = ("_limit", "_logs", "_prior", "_scatter", "_variance", "count")

    def __init__(self, *, assumed: bool = False) -> None:
        """`assumed`: the stated figures are no measurements of this engine or of one like it."""
        self.count = 0
        """Observations so far."""
        self._limit = ASSUMED_LIMIT if assumed else LIMIT
        self._prior = (ASSUMED_SD if assumed else PRIOR_SD) ** 2
        self._logs = [0.0] * COUNT
        self._variance = [[self._prior * (row == column) for column in range(COUNT)] for row in range(COUNT)]
        self._variance[1][2] = self._variance[2][1] = STEP_CORRELATION * self._prior
        self._scatter = [SCATTER_BOUNDS[1] / 2] * 2
        """Medians of the absolute logarithmic error: of times without and with overhead."""

    def observe(self, parts: Parts, observed_s: float) -> None:
        """Take one observed time in seconds. Times below MIN_TIME_S and without a learnt part are ignored."""
        seconds = [part * math.exp(log) for part, log in zip(parts[:COUNT], self._logs, strict=True)]
        total = sum(seconds) + parts.fixed
        if observed_s < MIN_TIME_S or total <= parts.fixed:
            return
        self.count += 1
        kind = int(parts.overhead > 0.0)
        shares = [part / total for part in seconds]
        covariance = [sum(v * share for v, share in zip(row, shares, strict=True)) for row in self._variance]
        known = sum(share * each for share, each in zip(shares, covariance, strict=True))
        noise = (SD_OF_MEDIAN * self._scatter[kind]) ** 2 + (JITTER_S / observed_s) ** 2
        error = math.log(observed_s / total)
        self._track_scatter(kind, abs(error), math.sqrt(max(0.0, known)))
        limit = OUTLIER * math.sqrt(known + noise)
        error = min(max(error, -limit), limit)
        for row, each in enumerate(covariance):
            gain = each / (known + noise)
            self._logs[row] = min(max(self._logs[row] + gain * error, -self._limit), self._limit)
            line = self._variance[row]
            for column in range(COUNT):
                line[column] -= gain * covariance[column]
            line[row] = min(line[row] + DRIFT, self._prior)

    def _track_scatter(self, kind: int, error: float, known_sd: float) -> None:
        """Move the median of the scatter, unless the error may be that of the estimate itself (`known_sd`)."""
        if known_sd > self._scatter[kind]:
            return
        lower, upper = SCATTER_BOUNDS
        moved = self._scatter[kind] * math.exp(math.copysign(SCATTER_STEP, error - self._scatter[kind]))
        self._scatter[kind] = min(max(moved, lower), upper)

    def inherit(self, other: "CapacityEstimate") -> None:
        """Start from the factors of another replica of the model, as uncertain as at first."""
        self._logs = [min(max(log, -self._limit), self._limit) for log in other._logs]

    @property
    def factors(self) -> Factors:
        """The learnt factors; 1 before anything is learnt."""
        return Factors(*map(math.exp, self._logs))

    @property
    def spreads(self) -> Factors:
        """Standard deviation of each factor's logarithm."""
        return Factors(*(math.sqrt(max(0.0, self._variance[row][row])) for row in range(COUNT)))

    @property
    def is_learnt(self) -> bool:
        """Whether the speed of prompts and of steps is known within LEARNT_SD, whatever was stated."""
        return max(self._variance[0][0], self._variance[1][1]) <= LEARNT_SD**2

    def apply(self, stated: Capacity) -> Capacity:
        """`stated` with the learnt figures; itself before anything is learnt."""
        if not any(self._logs):
            return stated
        factors = self.factors
        return msgspec.structs.replace(
            stated,
            prefill_tokens_per_s=stated.prefill_tokens_per_s / factors.prefill,
            prefill_pair_s=stated.prefill_pair_s * factors.prefill,
            step_base_s=stated.step_base_s * factors.base,
            step_experts_s=stated.step_experts_s * factors.base,
            step_per_seq_s=stated.step_per_seq_s * factors.sequences,
            request_s=overhead_of(stated) * factors.overhead,
        )


def overhead_of(stated: Capacity) -> float:
    """Stated seconds of a first token beside the engine's steps; never 0, which no factor could correct."""
    return stated.request_s or OVERHEAD_S
