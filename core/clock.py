"""Clocks that are passed as arguments, so that tests can replace them: monotonic seconds and UTC dates."""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """The interface of a clock."""

    def now(self) -> datetime:
        """The current instant in UTC. Money uses the database's clock instead."""

    def monotonic(self) -> float:
        """Seconds that never decrease; only differences have meaning."""


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        """The current instant in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()


class CountedTime:
    """Seconds in which this process ran: of an interval between two calls of `advance`, at most `most_s` count.

    An event loop that gets no CPU finds answers late that a server gave in time. Deadlines in counted seconds do not
    blame the server for that.
    """

    def __init__(self, most_s: float) -> None:
        self._last = 0.0
        self._most_s = most_s
        self._counted = 0.0

    def advance(self, now: float) -> float:
        """Count up to the monotonic instant `now`; returns the seconds counted so far."""
        self._counted += min(max(now - self._last, 0.0), self._most_s)
        self._last = now
        return self._counted
