"""An effect: what a refetched Stripe object does to our books. Fetched without a transaction, applied in one.

`prepare_*` functions of this package ask Stripe and return an Effect; whoever applies it adds, in the same transaction,
the mark that it is done. Effects look only at the object as it is now, so their order and number do not matter.
"""

from collections.abc import Awaitable, Callable
from typing import Literal

from sqlalchemy.ext.asyncio import AsyncConnection

from core.db import Database

Outcome = Literal["applied", "ignored", "foreign"]
"""applied | ignored: nothing to do | foreign: it belongs to none of our customers."""

Effect = Callable[[AsyncConnection], Awaitable[Outcome]]


async def nothing(connection: AsyncConnection) -> Outcome:
    """The effect of what concerns us and changes nothing."""
    return "ignored"


async def foreign(connection: AsyncConnection) -> Outcome:
    """The effect of what belongs to somebody else's use of the Stripe account."""
    return "foreign"


async def apply_now(database: Database, effect: Effect) -> Outcome:
    """Apply an effect in a transaction of its own."""
    async with database.system() as connection:
        return await effect(connection)
