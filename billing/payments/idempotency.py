"""Writes to Stripe that happen exactly once (https://docs.stripe.com/api/idempotent_requests)."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from core.errors import Unavailable

T = TypeVar("T")

WRITE_UNKNOWN = "stripe_failed"
"""Error code of a 500: whether the write happened is unknown, and Stripe answers 500 to its key from then on."""
MAX_KEYS = 4
"""Idempotency keys tried for one write."""


async def idempotent_write(
    write: Callable[[str], Awaitable[T]],
    find: Callable[[], Awaitable[T | None]],
    key: str,
    *,
    find_first: bool = False,
) -> T:
    """The result of `write` with an idempotency key, or the result of an earlier attempt that `find` returns.

    Stripe repeats the first answer to a key for 24 h, a 500 included. After a 500, `find` looks for the result of the
    write, and without one the next of MAX_KEYS keys derived from `key` is tried; every caller derives the same keys.
    Set `find_first` when an earlier attempt may be older than 24 h. Raises what `write` and `find` raise.
    """
    if find_first and (there := await find()) is not None:
        return there
    for number in range(MAX_KEYS - 1):
        try:
            return await write(key if number == 0 else f"{key}-{number}")
        except Unavailable as error:
            if error.code != WRITE_UNKNOWN:
                raise
        found = await find()
        if found is not None:
            return found
    return await write(f"{key}-{MAX_KEYS - 1}")
