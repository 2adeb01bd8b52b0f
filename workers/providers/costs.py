"""What a host costs, by its provider's events: from create to destroy, per second, rounded as the provider bills it.

DigitalOcean charges every second, at least LEAST_S of them and one cent, and shows whole cents (its documentation of
billing, since 2026-01-01). The price is the one that the host was created at.
"""

from datetime import datetime

from core.money import PICO_PER_CENT
from workers.providers.intents import Intent

LEAST_S = 60


def billed_pico(usd_pico_per_hour: int, created_at: datetime, until: datetime) -> int:
    """Picodollars, a whole number of cents, of a host from its creation until `until`; half a cent is rounded up."""
    seconds = max(int((until - created_at).total_seconds()), LEAST_S)
    cents = (2 * usd_pico_per_hour * seconds + 3600 * PICO_PER_CENT) // (2 * 3600 * PICO_PER_CENT)
    return max(cents, 1 if usd_pico_per_hour else 0) * PICO_PER_CENT


def host_cost_pico(intent: Intent, start: datetime | None, end: datetime) -> int:
    """Picodollars of an intent's host in [start, end); `start` None = from its creation. 0 for one that never existed.

    Periods that follow each other add up to the whole: each is the difference of what was billed until its ends.
    """
    if not intent.billed or intent.created_at is None or intent.usd_pico_per_hour is None:
        return 0
    until = end if intent.ended_at is None else min(end, intent.ended_at)
    if start is not None and intent.ended_at is not None and intent.ended_at <= start:
        return 0
    if end <= intent.created_at:
        return 0
    whole = billed_pico(intent.usd_pico_per_hour, intent.created_at, until)
    if start is None or start <= intent.created_at:
        return whole
    return whole - billed_pico(intent.usd_pico_per_hour, intent.created_at, start)
