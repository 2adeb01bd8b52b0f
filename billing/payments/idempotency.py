"""A write that happens once, whatever is answered."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from core.errors import Unavailable

T = TypeVar("T")

WRITE_UNKNOWN = "stripe_failed"
"""The code of a 500: whether the write happened is unknown, and its idempotency key answers 500 from now on."""
MAX_KEYS = 4


async def idempotent_write(
    write: Callable[[str], Awaitable[T]],
    find: Callable[[], Awaitable[T | None]],
    key: str,
    *,
    find_first: bool = False,
) -> T:
    """What `make` makes with an idempotency key, or what `find` finds when Stripe failed in the middle.

    Stripe repeats a key's first answer for 24 h, a 500 included. Then nobody gets further with it: everybody looks
    whether the write happened, and goes on to the next key of the same row of keys. `look_first` when an
    earlier attempt may be too old for its key. Raises what `make` raises.
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
