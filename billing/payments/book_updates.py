"""Book updates: functions that apply the present state of a Stripe object to our books.

A `prepare_*` function of this package fetches the object without a transaction and returns a BookUpdate, which the
caller applies in a transaction, together with the mark that an event is applied. An update depends only on the
object's present state, so updates may be applied in any order and repeatedly.
"""

from collections.abc import Awaitable, Callable
from typing import Literal

from sqlalchemy.ext.asyncio import AsyncConnection

from core.db import Database

UpdateOutcome = Literal["applied", "ignored", "foreign"]
"""applied | ignored (nothing to do) | foreign (belongs to none of our customers)"""

BookUpdate = Callable[[AsyncConnection], Awaitable[UpdateOutcome]]


async def no_change(connection: AsyncConnection) -> UpdateOutcome:
    """The update of an object that changes nothing."""
    return "ignored"


async def not_ours(connection: AsyncConnection) -> UpdateOutcome:
    """The update of an object that belongs to another use of the Stripe account."""
    return "foreign"


async def apply_update(database: Database, update: BookUpdate) -> UpdateOutcome:
    """Apply `update` in a transaction of its own."""
    async with database.system() as connection:
        return await update(connection)
