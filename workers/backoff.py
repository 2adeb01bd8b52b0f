"""How long to wait before a dead engine is started again."""

from core.clock import Clock

FIRST_S = 1.0
LONGEST_S = 60.0
FORGIVEN_AFTER_S = 60.0
"""An engine that has been healthy for this long starts with a clean record."""


class Backoff:
    """1, 2, 4, ... 60 seconds; back to 1 after a minute of health."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures = 0
        self._since = clock.monotonic()

    def started(self) -> None:
        """The engine has come up."""
        self._since = self._clock.monotonic()

    def healthy(self) -> None:
        """The engine has answered a probe."""
        if self._failures and self._clock.monotonic() - self._since >= FORGIVEN_AFTER_S:
            self._failures = 0

    def reset(self) -> None:
        """A person asked for a start."""
        self._failures = 0

    def next_delay(self) -> float:
        """Seconds to wait after this death."""
        delay = min(FIRST_S * 2.0**self._failures, LONGEST_S)
        self._failures += 1
        return delay
