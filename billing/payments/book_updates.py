"""An effect: what a refetched Stripe object does to our books. Fetched without a transaction, applied in one.

`prepare_*` functions of this package ask Stripe and return an Effect; whoever applies it adds, in the same transaction,
the mark that it is done. Effects look only at the object as it is now, so their order and number do not matter.
"""

from collections.abc import Awaitable, Callable
from typing import Literal

from sqlalchemy.ext.asyncio import AsyncConnection

from core.db import Database

UpdateOutcome = Literal["applied", "ignored", "foreign"]
"""applied | ignored: nothing to do | foreign: it belongs to none of our customers."""

BookUpdate = Callable[[AsyncConnection], Awaitable[UpdateOutcome]]


async def no_change(connection: AsyncConnection) -> UpdateOutcome:
    """The effect of what concerns us and changes nothing."""
    return "ignored"


async def not_ours(connection: AsyncConnection) -> UpdateOutcome:
    """The effect of what belongs to somebody else's use of the Stripe account."""
    return "foreign"


async def apply_update(database: Database, update: BookUpdate) -> UpdateOutcome:
    """Apply an effect in a transaction of its own."""
    async with database.system() as connection:
        return await update(connection)
