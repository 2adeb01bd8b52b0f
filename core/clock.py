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
