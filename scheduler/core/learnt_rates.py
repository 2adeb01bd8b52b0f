"""Speeds of an engine without measured figures, learnt from its answers (`Capacity.assumed`).

Two lines by weighted least squares, whose older observations fade:

    seconds per output token = alpha + beta * B      B: the running sequences when the answer ended
    seconds to first token   = q + P / R             P: uncached tokens that waited for prefill, the request's included

The assumed figures count as an observation, so that the lines are determined from the start. Of the second line only
the slope is assumed: prompts of one length do not tell q from P / R, and a large q is no slow prefill. q is not used
further: the residual of the TTFT has it. A replica without answers of its own has the figures of its model's other
replicas; otherwise the first one to answer would be preferred or avoided for what is only not known of the others.
"""

from dataclasses import dataclass

import msgspec

from workers.wire import Capacity

FADE = 0.98
"""Factor of the earlier observations' weight for each new one: about the last fifty answers count."""
PRIOR_WEIGHT = 0.5
"""Weight of each of the two points that stand for an assumed line; an answer has at most 1."""
PRIOR_BATCH = 64.0
PRIOR_BACKLOG = 500.0
"""Distance of the points, in sequences and in tokens."""
FULL_WEIGHT_TOKENS = 32
"""Output tokens from which an answer's time per token has the full weight."""
MIN_STEP_S = 1e-5
MAX_STEP_S = 60.0
MIN_RATE = 10.0
MAX_RATE = 1e6
"""Range of learnt figures: seconds per output token, and prompt tokens per second."""


@dataclass(slots=True)
class Line:
    """Sums of observations (x, y) with fading weights."""

    weight: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0

    def observe(self, x: float, y: float, weight: float) -> None:
        """Take one observation."""
        self.weight = FADE * self.weight + weight
        self.x = FADE * self.x + weight * x
        self.y = FADE * self.y + weight * y
        self.xx = FADE * self.xx + weight * x * x
        self.xy = FADE * self.xy + weight * x * y

    def fit(self, intercept: float, slope: float, span: float) -> tuple[float, float]:
        """Intercept and slope of the observations together with an assumed line, taken at 0 and at `span`."""
        prior = PRIOR_WEIGHT
        weight, x, xx = self.weight + 2 * prior, self.x + prior * span, self.xx + prior * span * span
        end = intercept + slope * span
        y, xy = self.y + prior * (intercept + end), self.xy + prior * span * end
        fitted = (weight * xy - x * y) / (weight * xx - x * x)
        return (y - fitted * x) / weight, fitted

    def fit_slope(self, slope: float, span: float) -> float:
        """Slope of the observations together with an assumed one, of two points `span` apart at the fitted intercept.

        The point at 0 adds nothing to the error, and that at `span` the squared difference of the slopes times `span`
        squared. Observations at one x leave the assumed slope as it is. A negative slope is noise and does so too. The
        intercept is never negative: the line then goes through the origin. At least one observation is needed.
        """
        prior = PRIOR_WEIGHT * span * span
        mean = self.x / self.weight
        spread = max(0.0, self.xx - mean * self.x)
        fitted = (self.xy - mean * self.y + prior * slope) / (spread + prior)
        if fitted <= 0.0:
            fitted = slope
        return fitted if fitted * self.x <= self.y else (self.xy + prior * slope) / (self.xx + prior)


class LearntRates:
    """What the answers of a replica, or of all replicas of a model, say about its speed."""

    __slots__ = ("_prefill", "_step")

    def __init__(self) -> None:
        self._step = Line()
        self._prefill = Line()

    def observe_first_token(self, backlog_tokens: int, ttft_s: float) -> None:
        """Take the time to a first token, with the uncached tokens that were to be prefilled until then."""
        self._prefill.observe(float(backlog_tokens), ttft_s, 1.0)

    def observe_answer(self, batch: int, itl_s: float, tokens: int) -> None:
        """Take an answer's seconds per output token after the first, over `tokens` of them."""
        itl_s = min(max(itl_s, MIN_STEP_S), MAX_STEP_S)
        self._step.observe(float(batch), itl_s, min(1.0, tokens / FULL_WEIGHT_TOKENS))

    def apply(self, assumed: Capacity) -> Capacity:
        """`assumed` with the learnt figures; itself before anything is learnt."""
        step_base_s, step_per_seq_s = assumed.step_base_s, assumed.step_per_seq_s
        rate = assumed.prefill_tokens_per_s
        if self._step.weight > 0.0:
            step_base_s, step_per_seq_s = self._step.fit(step_base_s, step_per_seq_s, PRIOR_BATCH)
            if step_per_seq_s < 0.0 or step_base_s < 0.0:  # noise: the mean, or a line through the origin
                mean_s = self._step.y / self._step.weight
                slope = self._step.xy / self._step.xx
                step_base_s, step_per_seq_s = (mean_s, 0.0) if step_per_seq_s < 0.0 else (0.0, slope)
        if self._prefill.weight > 0.0:
            rate = 1.0 / self._prefill.fit_slope(1.0 / rate, PRIOR_BACKLOG)
        return msgspec.structs.replace(
            assumed,
            prefill_tokens_per_s=min(max(rate, MIN_RATE), MAX_RATE),
            step_base_s=max(step_base_s, MIN_STEP_S),
            step_per_seq_s=step_per_seq_s,
        )
