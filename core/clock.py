"""Time as a dependency: durations from a monotonic clock, dates from UTC, both replaceable in tests."""

import time
from datetime import UTC, datetime
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
