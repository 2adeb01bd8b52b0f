"""Hourly and daily sums of usage, recomputed whole when new rows make them dirty; no watermarks.

Every settled batch marks the hours of its rows as dirty (`dirty_hours`), in its own transaction. A report takes a clean
hour from its sum and a dirty one from the rows, so it always equals the rows (billing/usage/sums.py). Past days are
summed from their hours; rolling up an hour invalidates its day until the day is rolled up again. Then the day's share
of the host cost is computed (billing/usage/gpu_shares.py).
"""

import logging

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.usage.gpu_shares import share_new_days
from core.db import Database

log = logging.getLogger(__name__)

_DIRTY_CLOSED_HOURS = (
    "SELECT DISTINCT hour FROM dirty_hours "
    "WHERE hour < date_trunc('hour', clock_timestamp(), 'UTC') ORDER BY hour"
)
_DELETE_DUPLICATE_MARKS = (
    "DELETE FROM dirty_hours WHERE hour >= date_trunc('hour', clock_timestamp(), 'UTC') "
    "AND id NOT IN (SELECT max(id) FROM dirty_hours GROUP BY hour)"
)
_INCOMPLETE_PAST_DAYS = (
    "SELECT day FROM usage_day_state WHERE NOT whole "
    "AND day < date_trunc('day', clock_timestamp(), 'UTC') ORDER BY day"
)
_UNVERIFIED_DAYS = (
    "SELECT day FROM usage_day_state WHERE whole AND NOT verified AND day >= clock_timestamp() - interval '62 days' "
    "AND day < clock_timestamp() - interval '3 days' AND (compared_at IS NULL OR clock_timestamp() >= compared_at "
    "+ least(greatest(compared_at - differs_since, interval '10 minutes'), interval '1 day')) ORDER BY day"
)
"""Days that no late usage can enter any more (a day and the late window of 48 h), of the months that may be open.

A day that differed waits as long again as it has differed, 10 minutes to a day."""


async def roll_up(database: Database) -> int:
    """Recompute every dirty closed hour, then the past days of those, each in its own transaction.

    Idempotent; returns the number of hours.
    """
    async with database.system() as connection:
        hours = (await connection.execute(text(_DIRTY_CLOSED_HOURS))).scalars().all()
    for hour in hours:
        async with database.system() as connection:
            await connection.execute(text("SELECT penstock_roll_hour(:hour)"), {"hour": hour})
    async with database.system() as connection:
        days = (await connection.execute(text(_INCOMPLETE_PAST_DAYS))).scalars().all()
    for day in days:
        async with database.system() as connection:
            await connection.execute(text("SELECT penstock_roll_day(:day)"), {"day": day})
    await share_new_days(database)
    async with database.system() as connection:
        await connection.execute(text(_DELETE_DUPLICATE_MARKS))
    return len(hours)


async def verify_days(database: Database) -> int:
    """Compare the rows of past days with their rollup, each day once, and remember the result; returns the number of
    days that are equal.

    A day that differs is kept with its difference in `usage_day_state`, logged, and compared again at growing
    intervals, or at once when it is rolled up again. The close reads the rows of the days that are not equal
    (billing/close/checks.py `drift`).
    """
    async with database.system() as connection:
        days = (await connection.execute(text(_UNVERIFIED_DAYS))).scalars().all()
    equal = 0
    for day in days:
        async with database.system() as connection:
            found = await connection.scalar(text("SELECT penstock_verify_day(:day)"), {"day": day})
        equal += found == "equal"
        if found not in ("equal", "wait"):
            log.error("the rollup of %s differs from its usage rows: %s", f"{day:%Y-%m-%d}", found)
    return equal


async def make_partitions(connection: AsyncConnection, months_ahead: int = 2) -> int:
    """Create the partitions of holds and usage of this month and the next `months_ahead`; returns how many are new."""
    made = await connection.execute(text("SELECT penstock_make_partitions(:ahead)"), {"ahead": months_ahead})
    return int(made.scalar_one())
