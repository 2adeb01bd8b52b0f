"""What the answers of one model have taught about its requests, and how much of a promise its batches may use.

Three corrections of beliefs that are off for all replicas of a model alike; what one replica's answers say about that
replica is in `replica.ReplicaStats`. Measured effect: docs/adr/0016.
"""

from scheduler.core.config import PolicyConfig

INITIAL_UNCACHED = 1000.0
INITIAL_OUTPUT = 200.0
"""Tokens of a request, as long as nothing is known."""
UNCACHED_RATIO_BOUNDS = (0.25, 2.0)
"""Bounds of `ModelStats.uncached_ratio`: beyond them beliefs are not inexact but wrong."""


class ModelStats:
    """Running means over one model's placements and answers. Deterministic: moved by events alone."""

    __slots__ = (
        "_config",
        "_uncached_believed",
        "_uncached_found",
        "itl_slack",
        "typical_output",
        "typical_uncached",
        "uncached_ratio",
    )  # fmt: skip

    def __init__(self, config: PolicyConfig) -> None:
        self._config = config
        self.typical_uncached = INITIAL_UNCACHED
        self.typical_output = INITIAL_OUTPUT
        """Of a placement, tokens."""
        self.uncached_ratio = 1.0
        """Prompt tokens that engines had to prefill per token that was believed uncached. Beliefs come from below: a
        chain is known at some depths only, and a prompt that others bring meanwhile is not believed. Where prompts are
        mostly cached that doubles what is believed to be left, and with it every replica's load of prefill."""
        self._uncached_believed = self._uncached_found = INITIAL_UNCACHED
        self.itl_slack = config.itl_slack
        """Share of the promised time per token that a batch may use: see `answered`."""

    def observe_placement(self, uncached: float, output: int) -> None:
        """A request was placed, with so many tokens to prefill and an answer of about this length."""
        gain = self._config.typical_gain
        self.typical_uncached += gain * (uncached - self.typical_uncached)
        self.typical_output += gain * (output - self.typical_output)

    def observe_prefill(self, believed: float, found: float) -> None:
        """An engine said how many of a prompt's tokens were not cached; `believed` were thought not to be."""
        gain = self._config.typical_gain
        self._uncached_believed += gain * (believed - self._uncached_believed)
        self._uncached_found += gain * (max(0.0, found) - self._uncached_found)
        lower, upper = UNCACHED_RATIO_BOUNDS
        self.uncached_ratio = min(upper, max(lower, self._uncached_found / max(1.0, self._uncached_believed)))

    def observe_itl(self, predicted_s: float, observed_s: float, promised_s: float, queued_s: float) -> None:
        """An answer took `observed_s` per token where `predicted_s` was predicted and `promised_s` promised; its
        request had waited `queued_s` in our queue.

        Answers of full batches move the slack, so that a share `itl_miss_share` of them misses the promise (stochastic
        approximation, Robbins and Monro 1951). In a batch with room a miss has another cause: a long prompt beside a
        short answer, which a smaller batch would not have helped. Nor does one while nobody queues: it would only make
        them queue, and since that costs throughput, for good.
        """
        config = self._config
        if predicted_s < config.full_batch_share * promised_s:
            return
        missed = observed_s > promised_s and queued_s > config.miss_min_queued_s
        moved = self.itl_slack + config.slack_step * (config.itl_miss_share - missed)
        self.itl_slack = min(config.slack_max, max(config.slack_min, moved))
