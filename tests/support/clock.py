"""A clock for tests."""

from datetime import UTC, datetime, timedelta


class ManualClock:
    """A clock that moves only when a test moves it."""

    def __init__(self, start: datetime | None = None) -> None:
        self._now = start or datetime(2026, 1, 1, tzinfo=UTC)
        self._monotonic = 0.0

    def now(self) -> datetime:
        """The instant the test has set."""
        return self._now

    def monotonic(self) -> float:
        """Seconds advanced since the start."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Move both clocks forward by `seconds`."""
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds
