"""Acquire money and a seat at once, both or neither."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

H = TypeVar("H")
P = TypeVar("P")


async def both_or_neither(
    money: Coroutine[Any, Any, H],
    seat: Coroutine[Any, Any, P],
    *,
    void: Callable[[H], None],
    unplace: Callable[[P], None],
) -> tuple[H, P]:
    """Run the two side by side and return both results.

    When one fails or the caller is cancelled, what the other acquired, or still acquires, is given back once; money's
    error goes first. Each of the two gives back by itself what a cancellation meets in the middle of it.
    """
    placing = asyncio.ensure_future(seat)
    try:
        hold = await money
    except BaseException:
        _abandon(placing, unplace)
        raise
    try:
        return hold, await placing
    except BaseException:
        void(hold)
        _abandon(placing, unplace)
        raise


def _abandon(placing: "asyncio.Task[P]", unplace: Callable[[P], None]) -> None:
    """Stop placing; a seat that was found all the same is given back."""

    def give_back(task: "asyncio.Task[P]") -> None:
        if not task.cancelled() and task.exception() is None:
            unplace(task.result())

    placing.cancel()
    if placing.done():
        give_back(placing)
    else:
        placing.add_done_callback(give_back)
