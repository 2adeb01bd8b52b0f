"""What the fake cloud charges: per second from create to destroy, at least 60 s and one cent per droplet.

Exact fractions, and none of the platform's own code: tests compare the two.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import floor

LEAST_S = 60
LEAST_CENTS = 1


@dataclass
class Meter:
    """One droplet on the bill. Times are whole Unix seconds."""

    droplet_id: int
    name: str
    usd_per_hour: Fraction
    """Fixed at the create."""
    created_at: int
    destroyed_at: int | None = None

    def cents(self, now: int) -> int:
        """What the droplet has cost until `now`, rounded half up to a cent."""
        end = now if self.destroyed_at is None else min(self.destroyed_at, now)
        seconds = max(end - self.created_at, LEAST_S)
        return max(floor(self.usd_per_hour * 100 * seconds / 3600 + Fraction(1, 2)), LEAST_CENTS)


class BillingLedger:
    """All droplets that were ever created, with their prices and times."""

    def __init__(self) -> None:
        self.meters: dict[int, Meter] = {}

    def open(self, droplet_id: int, name: str, usd_per_hour: Fraction, now: int) -> None:
        """Start to charge a droplet."""
        self.meters[droplet_id] = Meter(droplet_id, name, usd_per_hour, now)

    def close(self, droplet_id: int, now: int) -> None:
        """Stop to charge it."""
        self.meters[droplet_id].destroyed_at = now

    def cents(self, now: int, tagged: frozenset[int] | None = None) -> int:
        """The whole bill until `now`, or that of some droplets."""
        return sum(
            meter.cents(now) for meter in self.meters.values() if tagged is None or meter.droplet_id in tagged
        )
