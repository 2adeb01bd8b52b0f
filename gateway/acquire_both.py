"""Acquires a hold and a placement side by side, both or neither."""

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
    """Run both coroutines side by side and return both results.

    When one fails, or the caller is cancelled, the result of the other is released exactly once, even if it arrives
    later: a hold by `void`, a placement by `unplace`. When both fail, the error of `place_hold` is raised. A coroutine
    that is cancelled before it returns must release by itself what it has acquired.
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
    """Cancel the placement; one that was made nevertheless is released."""

    def release(task: "asyncio.Task[PlacementT]") -> None:
        if not task.cancelled() and task.exception() is None:
            unplace(task.result())

    placing.cancel()
    if placing.done():
        release(placing)
    else:
        placing.add_done_callback(release)
