"""The close of a month in one step, for tests of what comes before and after it."""

from datetime import date

from billing.close import periods
from billing.close.periods import Checklist
from core.db import Database


async def close_month(database: Database, month: date, *, by: str) -> Checklist:
    """Prepare the close of `month` and carry it out. Raises as `prepare_close`."""
    final = await periods.prepare_close(database, month)
    async with database.system() as connection:
        return await periods.close_month(connection, month, final, by=by) or final
