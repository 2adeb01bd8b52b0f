"""Time as a dependency: durations from a monotonic clock, dates from UTC, both replaceable in tests."""

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """What code that needs time takes as an argument."""

    def now(self) -> datetime:
        """The current instant, always in UTC. Money uses the database's clock instead (DESIGN §5)."""

    def monotonic(self) -> float:
        """Seconds that never go back; only differences have meaning."""


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        """The current instant in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()


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
