"""One time for the database and for Stripe, moved by the play."""

import asyncio
from datetime import UTC, datetime, timedelta

from core.clock import SystemClock
from tests.support.stripe_sim import FakeStripe
from tests.support.virtual_time import VirtualClock


class ShiftedClock:
    """The machine's clock, so much ahead that it begins at `start`."""

    def __init__(self, start: datetime) -> None:
        self._machine = SystemClock()
        self._ahead = start - self._machine.now()

    def now(self) -> datetime:
        """The shifted instant."""
        return self._machine.now() + self._ahead

    def monotonic(self) -> float:
        """As the machine's."""
        return self._machine.monotonic()


class Timeline:
    """Moves PostgreSQL's clock and the local Stripe's together, only forward."""

    def __init__(self, database: VirtualClock, clock: ShiftedClock, stripe: FakeStripe) -> None:
        self._database, self._clock, self._stripe = database, clock, stripe
        self._moved = 0

    def now(self) -> datetime:
        """The instant of the play."""
        return self._clock.now() + timedelta(seconds=self._moved)

    async def go(self, instant: datetime) -> None:
        """It is `instant` now (to the second); what falls due at Stripe until then happens."""
        seconds = -((self.now() - instant) // timedelta(seconds=1))
        if seconds <= 0:
            return
        self._moved += seconds
        await self._database.set(self.now())
        await asyncio.to_thread(self._stripe.advance, seconds)

    async def later(self, **time: float) -> None:
        """So much later."""
        await self.go(self.now() + timedelta(**time))


def utc(*parts: int) -> datetime:
    """An instant in UTC."""
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc, arg-type]
