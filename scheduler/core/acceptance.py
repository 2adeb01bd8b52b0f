"""Tokens of a step and sequence under speculative decoding, as an engine's counters show them.

An engine counts the drafts that it made and the draft tokens that it accepted, so a step of a sequence yields
1 + accepted/drafts tokens. The stated figure counts as PRIOR_DRAFTS drafts, and older drafts count half after every
HALF_LIFE newer ones, because acceptance follows the texts of the day.
"""

import math

import msgspec

from workers.wire import Capacity, EngineCounters

PRIOR_DRAFTS = 500.0
"""Drafts that the stated figure counts as: a few answers."""
HALF_LIFE = 20_000.0
"""Drafts after which the weight of earlier ones has halved: some hundred answers."""


class Acceptance:
    """Accepted tokens per draft of one engine incarnation."""

    __slots__ = ("_accepted", "_drafts", "_seen")

    def __init__(self) -> None:
        self._drafts = self._accepted = 0.0
        self._seen = EngineCounters()

    def observe(self, counters: EngineCounters) -> None:
        """Take an engine's cumulative counters; the same ones twice tell nothing."""
        drafts = counters.drafts - self._seen.drafts
        accepted = counters.accepted_tokens - self._seen.accepted_tokens
        if drafts <= 0 or accepted < 0:
            return
        kept = math.pow(0.5, drafts / HALF_LIFE)
        self._drafts = kept * self._drafts + drafts
        self._accepted = kept * self._accepted + accepted
        self._seen = counters

    def spread(self, stated: Capacity) -> float:
        """Standard deviation of the logarithm of `apply`'s tokens per step, as if acceptances were independent.

        The mean of n drafts with `extra` accepted tokens each has a variance of extra/n (Poisson).
        """
        accepted = self.apply(stated).accept_per_step
        return math.sqrt((accepted - 1.0) / (self._drafts + PRIOR_DRAFTS)) / accepted

    def apply(self, stated: Capacity) -> Capacity:
        """`stated` with the observed tokens per step; itself where nothing is drafted or observed.

        At least 1, and at most one more than the drafted tokens where their number is stated.
        """
        if not self._drafts:
            return stated
        weight = self._drafts + PRIOR_DRAFTS
        extra = (self._accepted + PRIOR_DRAFTS * (stated.accept_per_step - 1.0)) / weight
        most = float(stated.draft_tokens) if stated.draft_tokens else math.inf
        return msgspec.structs.replace(stated, accept_per_step=1.0 + min(max(extra, 0.0), most))
