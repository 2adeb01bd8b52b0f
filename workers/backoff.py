"""The backoff between restarts of an engine."""

from core.clock import Clock

INITIAL_DELAY_S = 1.0
MAX_DELAY_S = 60.0
RESET_AFTER_S = 60.0
"""Seconds of health after which the next delay is the initial one again."""


def pause_after(failures: int, first_s: float, longest_s: float) -> float:
    """Seconds to wait after so many failures in a row: `first_s`, doubled with each further one up to `longest_s`."""
    return float(min(first_s * 2.0 ** min(failures - 1, 30), longest_s))


class Backoff:
    """Exponential delays of 1, 2, 4, ... 60 seconds; back to 1 after a minute of health."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures = 0
        self._since = clock.monotonic()

    @property
    def failures(self) -> int:
        """Failures in a row."""
        return self._failures

    def on_started(self) -> None:
        """Record that the engine has started."""
        self._since = self._clock.monotonic()

    def on_healthy(self) -> None:
        """Record that a probe has succeeded."""
        if self._failures and self._clock.monotonic() - self._since >= RESET_AFTER_S:
            self._failures = 0

    def reset(self) -> None:
        """Forget the failures, for a start by command."""
        self._failures = 0

    def next_delay(self) -> float:
        """Record a failure and return the seconds to wait before the restart."""
        self._failures += 1
        return pause_after(self._failures, INITIAL_DELAY_S, MAX_DELAY_S)
