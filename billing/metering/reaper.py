"""The reaper: releases the holds of dead processes.

A hold that was not renewed for one TTL and has no usage row is closed as `expired`. After an outage of PostgreSQL, in
which live processes could not renew, the reaper waits one TTL first. A settlement that arrives for an expired hold is
still booked, from the money that the account has left.
"""

from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

BATCH = 500
"""Holds that one call expires at most."""


async def reap(connection: AsyncConnection, ttl_s: float, *, gap_s: float | None = None) -> int:
    """Expire at most BATCH holds that were not renewed for `ttl_s` seconds; returns how many.

    A gap of more than `gap_s` seconds (default: half a TTL) since the last call counts as an outage.
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
