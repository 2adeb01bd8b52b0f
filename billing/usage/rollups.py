"""Hourly sums of usage. A closed hour is recomputed whole whenever a settled batch touched it; no watermarks.

Every settled batch leaves a mark for the hours it touched (`dirty_hours`), in its own transaction. A report takes an
hour from the rollup only when it carries no mark, else from the rows; so it always equals the rows
(billing/reports/usage_report.py).
Past days are summed from their hours in the same way: rolling an hour unmakes its day until the day is rolled again.
A day that was rolled is given its part of what the hosts cost (billing/usage/gpu_shares.py).
"""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.usage.gpu_shares import share_new_days
from core.db import Database

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


async def roll_up(database: Database) -> int:
    """Recompute every touched closed hour, then the past days of those, each in its own transaction; returns how many
    hours. May run twice.
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


async def make_partitions(connection: AsyncConnection, months_ahead: int = 2) -> int:
    """Partitions of holds and usage for this month and the next ones; returns how many were new."""
    made = await connection.execute(text("SELECT penstock_make_partitions(:ahead)"), {"ahead": months_ahead})
    return int(made.scalar_one())
