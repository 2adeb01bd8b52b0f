"""Statistics of one model's requests and answers, and how much of a target its batches may use.

They correct beliefs that are off for all replicas of a model alike. Measured effect: docs/adr/0016.
"""

from scheduler.core.config import PolicyConfig
from workers.step_time import context_pairs

INITIAL_UNCACHED = 1000.0
"""Uncached tokens of a typical request before any is observed."""
INITIAL_OUTPUT = 200.0
"""Output tokens of a typical request before any is observed."""
UNCACHED_RATIO_BOUNDS = (0.25, 2.0)
"""Bounds of `ModelStats.uncached_ratio`: beyond them beliefs are wrong, not inexact."""


class ModelStats:
    """Running means over one model's placements and answers. Deterministic: only events change them."""

    __slots__ = (
        "_config",
        "_uncached_believed",
        "_uncached_found",
        "itl_slack",
        "typical_output",
        "typical_pairs",
        "typical_uncached",
        "uncached_ratio",
    )  # fmt: skip

    def __init__(self, config: PolicyConfig) -> None:
        self._config = config
        self.typical_uncached = INITIAL_UNCACHED
        self.typical_pairs = context_pairs(INITIAL_UNCACHED, INITIAL_UNCACHED)
        """Running mean of the pairs of these tokens with tokens before them (`step_time.context_pairs`)."""
        self.typical_output = INITIAL_OUTPUT
        """Running mean of the estimated output tokens of placements."""
        self.uncached_ratio = 1.0
        """Prompt tokens that engines had to prefill, per token that was believed to be uncached.

        Beliefs are lower bounds of what is cached: a chain is known at some depths only, and prompts that are
        prefilled meanwhile are not included. Where prompts are mostly cached, this doubles the expected prefill, and
        with it every replica's backlog.
        """
        self._uncached_believed = self._uncached_found = INITIAL_UNCACHED
        self.itl_slack = config.itl_slack
        """Share of the target time per token that a batch may use; see `observe_itl`."""

    def observe_placement(self, uncached: float, prompt: int, output: int) -> None:
        """Take a placement's uncached and all prompt tokens, and its estimated output tokens."""
        gain = self._config.typical_gain
        self.typical_pairs += gain * (context_pairs(uncached, prompt) - self.typical_pairs)
        self.typical_uncached += gain * (uncached - self.typical_uncached)
        self.typical_output += gain * (output - self.typical_output)

    def observe_prefill(self, believed: float, found: float) -> None:
        """Compare uncached prompt tokens: `believed` before the request, `found` by the engine."""
        gain = self._config.typical_gain
        self._uncached_believed += gain * (believed - self._uncached_believed)
        self._uncached_found += gain * (max(0.0, found) - self._uncached_found)
        lower, upper = UNCACHED_RATIO_BOUNDS
        self.uncached_ratio = min(upper, max(lower, self._uncached_found / max(1.0, self._uncached_believed)))

    def observe_itl(self, predicted_s: float, observed_s: float, promised_s: float, queued_s: float) -> None:
        """Take the time per token of an answer, in seconds: predicted, observed and promised; and its time in the
        queue.

        Answers of full batches move the slack, so that a share `itl_miss_share` of them misses the target (stochastic
        approximation, Robbins and Monro 1951). In a batch with room a miss has another cause, such as a long prompt
        beside a short answer, and a smaller batch would not help. A miss without queueing is ignored as well: smaller
        batches would only cause queueing, and because they cost throughput it would stay.
        """
        config = self._config
        if predicted_s < config.full_batch_share * promised_s:
            return
        missed = observed_s > promised_s and queued_s > config.miss_min_queued_s
        moved = self.itl_slack + config.slack_step * (config.itl_miss_share - missed)
        self.itl_slack = min(config.slack_max, max(config.slack_min, moved))
