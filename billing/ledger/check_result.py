"""What a check of the close finds. Apart from the checks, so that other packages can write theirs."""

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
