"""Acquire money and a seat at once, both or neither."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

HoldT = TypeVar("HoldT")
PlacementT = TypeVar("PlacementT")


async def acquire_both(
    place_hold: Coroutine[Any, Any, HoldT],
    place_request: Coroutine[Any, Any, PlacementT],
    *,
    void: Callable[[HoldT], None],
    unplace: Callable[[PlacementT], None],
) -> tuple[HoldT, PlacementT]:
    """Run the two side by side and return both results.

    When one fails or the caller is cancelled, what the other acquired, or still acquires, is given back once; money's
    error goes first. Each of the two gives back by itself what a cancellation meets in the middle of it.
    """
    placing = asyncio.ensure_future(place_request)
    try:
        hold = await place_hold
    except BaseException:
        _cancel_placing(placing, unplace)
        raise
    try:
        return hold, await placing
    except BaseException:
        void(hold)
        _cancel_placing(placing, unplace)
        raise


def _cancel_placing(placing: "asyncio.Task[PlacementT]", unplace: Callable[[PlacementT], None]) -> None:
    """Stop placing; a seat that was found all the same is given back."""

    def give_back(task: "asyncio.Task[PlacementT]") -> None:
        if not task.cancelled() and task.exception() is None:
            unplace(task.result())

    placing.cancel()
    if placing.done():
        give_back(placing)
    else:
        placing.add_done_callback(give_back)
