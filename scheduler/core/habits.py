"""What the answers of one model have taught about its requests, and how much of a promise its batches may use.

Three corrections of beliefs that are off for all replicas of a model alike; what one replica's answers say about that
replica is in `replica.Learnt`. Measured effect: docs/adr/0016.
"""

from scheduler.core.config import PolicyConfig

FIRST_UNCACHED = 1000.0
FIRST_OUTPUT = 200.0
"""Tokens of a request, as long as nothing is known."""
FOUND_LIMITS = (0.25, 2.0)
"""Bounds of `Habits.found_share`: beyond them beliefs are not inexact but wrong."""


class Habits:
    """Running means over one model's placements and answers. Deterministic: moved by events alone."""

    __slots__ = (
        "_config", "_uncached_believed", "_uncached_found", "found_share", "slack", "typical_output",
        "typical_uncached",
    )  # fmt: skip

    def __init__(self, config: PolicyConfig) -> None:
        self._config = config
        self.typical_uncached = FIRST_UNCACHED
        self.typical_output = FIRST_OUTPUT
        """Of a placement, tokens."""
        self.found_share = 1.0
        """Prompt tokens that engines had to prefill per token that was believed uncached. Beliefs come from below: a
        chain is known at some depths only, and a prompt that others bring meanwhile is not believed. Where prompts are
        mostly cached that doubles what is believed to be left, and with it every replica's load of prefill."""
        self._uncached_believed = self._uncached_found = FIRST_UNCACHED
        self.slack = config.itl_slack
        """Share of the promised time per token that a batch may use: see `answered`."""

    def placed(self, uncached: float, output: int) -> None:
        """A request was placed, with so many tokens to prefill and an answer of about this length."""
        gain = self._config.typical_gain
        self.typical_uncached += gain * (uncached - self.typical_uncached)
        self.typical_output += gain * (output - self.typical_output)

    def prefilled(self, believed: float, found: float) -> None:
        """An engine said how many of a prompt's tokens were not cached; `believed` were thought not to be."""
        gain = self._config.typical_gain
        self._uncached_believed += gain * (believed - self._uncached_believed)
        self._uncached_found += gain * (max(0.0, found) - self._uncached_found)
        least, most = FOUND_LIMITS
        self.found_share = min(most, max(least, self._uncached_found / max(1.0, self._uncached_believed)))

    def answered(self, predicted_s: float, observed_s: float, promised_s: float, queued_s: float) -> None:
        """An answer took `observed_s` per token where `predicted_s` was predicted and `promised_s` promised; its
        request had waited `queued_s` in our queue.

        Answers of full batches move the slack, so that a share `missed_share` of them misses the promise (stochastic
        approximation, Robbins and Monro 1951). In a batch with room a miss has another cause: a long prompt beside a
        short answer, which a smaller batch would not have helped. Nor does one while nobody queues: it would only make
        them queue, and since that costs throughput, for good.
        """
        config = self._config
        if predicted_s < config.full_batch * promised_s:
            return
        missed = observed_s > promised_s and queued_s > config.pressed_s
        moved = self.slack + config.slack_step * (config.missed_share - missed)
        self.slack = min(config.slack_most, max(config.slack_least, moved))
