"""Maintenance of the platform: requests that begin are refused with a notice, everything else runs."""

from datetime import datetime
from math import ceil

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from core.errors import Unavailable
from workers.tables import maintenance

RETRY_AFTER_S = 60.0
"""When a client may ask again, where no end is stated or the stated one has passed."""
_LONGEST_RETRY_AFTER_S = 3600.0


class Maintenance(msgspec.Struct, frozen=True):
    """A maintenance in progress. It ends when an admin ends it."""

    notice: str
    """What customers read."""
    began_at: datetime
    expected_end: datetime | None
    """When it is expected to be over; None = not stated."""


async def read_maintenance(connection: AsyncConnection) -> Maintenance | None:
    """The maintenance in progress; None = there is none."""
    columns = (maintenance.c.notice, maintenance.c.began_at, maintenance.c.expected_end)
    row = (await connection.execute(select(*columns))).one_or_none()
    return None if row is None else Maintenance(*row)


def refusal(found: Maintenance, now: datetime) -> Unavailable:
    """The error of a request that begins at `now`, during a maintenance."""
    left_s = RETRY_AFTER_S if found.expected_end is None else (found.expected_end - now).total_seconds()
    if left_s <= 0:
        left_s = RETRY_AFTER_S
    return Unavailable(
        f"The platform is in maintenance: {found.notice} Nothing was charged; try again in {ceil(left_s)} s.",
        code="maintenance",
        retry_after_s=min(left_s, _LONGEST_RETRY_AFTER_S),
    )
