"""Holds a model's queue for a request that fits nowhere and that others have passed often enough.

Others pass such a request, because otherwise the pool would idle until it fits. Without an end to that a large prompt
would starve under steady small traffic, so after `QueueRules.max_passed` requests with at least its own work the
requests behind it wait until replicas have drained enough. Requests ahead of it in fair order still go, among them
all of higher bands. They may keep it from ever fitting, so a hold ends after `QueueRules.hold_s`, and none begins for
as long afterwards.
"""

from scheduler.core.flow import QueuedRequest
from scheduler.core.rules import QueueRules


class Hold:
    """Which request the others of one model wait for. Times are monotonic seconds."""

    def __init__(self, rules: QueueRules) -> None:
        self._rules = rules
        self._queued: QueuedRequest | None = None
        self._since = 0.0
        self._rest_until = float("-inf")

    def resting(self, now: float) -> bool:
        """Whether a hold came to nothing just before, so that none may begin."""
        return now < self._rest_until

    def due(self, queued: QueuedRequest, now: float) -> bool:
        """Whether no more requests may pass `queued`, which fits nowhere. For one that has to run in a region none is
        held back: replicas elsewhere would idle."""
        if queued.where is not None:
            return False
        enough = queued.passed >= self._rules.max_passed and queued.passed_work >= queued.work
        return enough and not self.resting(now)

    def record(self, blocker: QueuedRequest | None, now: float) -> None:
        """Note which request the others waited for in the pass that ended; None = they waited for none."""
        if blocker is not self._queued:
            self._queued, self._since = blocker, now
        elif blocker is not None and now - self._since >= self._rules.hold_s:
            blocker.passed, blocker.passed_work = 0, 0.0
            self._queued, self._rest_until = None, now + self._rules.hold_s
