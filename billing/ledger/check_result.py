"""The result of a check of the month close, which several packages write."""

from collections.abc import Awaitable, Callable
from datetime import date

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection


class CheckResult(msgspec.Struct, frozen=True):
    """The result of one check."""

    name: str
    ok: bool
    detail: str
    """The finding, and the next step when the check failed."""


Check = Callable[[AsyncConnection, date], Awaitable[CheckResult]]
"""A check of the month that begins on a date."""
