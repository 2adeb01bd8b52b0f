"""The close checklist: what must be true before a month is frozen. Every check says what to do when it is red.

A package that knows a reason not to close adds its function here: `async (connection, month) -> CheckResult`. It runs
in a read-only transaction of the platform; `month` is the first day of the month.
"""

from collections.abc import Awaitable, Callable
from datetime import date

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection


class CheckResult(msgspec.Struct, frozen=True):
    """What a check found."""

    name: str
    ok: bool
    detail: str
    """What was found; when red also what to do next."""


Check = Callable[[AsyncConnection, date], Awaitable[CheckResult]]

CHECKS: tuple[Check, ...] = ()
"""In the order in which people read them."""
