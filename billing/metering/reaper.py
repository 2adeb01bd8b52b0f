"""The reaper: holds of processes that died give their money back (DESIGN §5).

A hold that nobody renewed for one TTL and that has no usage row is closed as `expired`. When PostgreSQL was away, live
processes could not renew either, so the reaper then waits one TTL. A settlement that comes after all still settles,
from what the account has left.
"""

from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

BATCH = 500


async def reap(connection: AsyncConnection, ttl_s: float, *, gap_s: float | None = None) -> int:
    """Expire at most 500 lapsed holds; returns how many.

    `gap_s`: nobody having called for so long means that PostgreSQL (or the jobs) was away; default half a TTL.
    """
    expired = await connection.execute(
        text("SELECT penstock_reap(CAST(:ttl AS interval), CAST(:gap AS interval), :limit)"),
        {
            "ttl": timedelta(seconds=ttl_s),
            "gap": timedelta(seconds=ttl_s / 2 if gap_s is None else gap_s),
            "limit": BATCH,
        },
    )
    return int(expired.scalar_one())
