"""Whether a queue keeps growing: requests arrive faster than they are served, and have done so for some time.

A queue of constant length is no overload, however long it is: callers that keep a number of requests open refill it as
fast as it is served. Neither is a burst, which raises the length once.
"""

from collections import deque

PERIOD_S = 1.0
"""Length of a period, in seconds; the mean lengths of periods are compared."""
COMPARED_PERIODS = 8
"""Periods that a mean is compared with: the queue grows when it is longer than in each of them."""
MIN_GROWTH = 1.0
"""Least growth over the longest of them, in requests."""
MIN_GROWTH_SHARE = 0.05
"""The same as a share of the period's arrivals."""
GROWTH_SCORE = 2
"""What a period of growth adds to the score; each other period takes 1 away."""
SUSTAINED = 4 * GROWTH_SCORE
"""Score from which on growth is sustained."""
MAX_SCORE = 30
"""Largest score. Growth counts as over when the queue has not grown for twice as long as it grew, at most for as many
periods: an overload pauses at times, and to return to the order of arrival makes every request late."""


class Growth:
    """Observes the number of requests that were not served at every arrival, which costs a few additions."""

    __slots__ = ("_arrivals", "_began", "_means", "_score", "_sum", "sustained")

    def __init__(self) -> None:
        self.sustained = False
        """Whether the queue keeps growing: from a score of SUSTAINED until the score is back at 0."""
        self._score = 0
        self._means: deque[float] = deque(maxlen=COMPARED_PERIODS)
        self._began = float("-inf")
        self._sum = 0
        self._arrivals = 0

    def observe(self, at: float, waiting: int) -> None:
        """Count the arrival of a request at monotonic time `at`, when `waiting` requests have not been served."""
        if at - self._began >= PERIOD_S:
            self._end_period(at)
        self._sum += waiting
        self._arrivals += 1

    def _end_period(self, at: float) -> None:
        if self._arrivals:
            mean, margin = self._sum / self._arrivals, max(MIN_GROWTH, MIN_GROWTH_SHARE * self._arrivals)
            step = GROWTH_SCORE if mean > max(self._means, default=0.0) + margin else -1
            silent = min(MAX_SCORE, int((at - self._began) / PERIOD_S) - 1)  # periods without an arrival
            self._score = min(MAX_SCORE, max(0, self._score + step - silent))
            self.sustained = self._score >= SUSTAINED or (self.sustained and self._score > 0)
            self._means.append(mean)
        self._began, self._sum, self._arrivals = at, 0, 0
