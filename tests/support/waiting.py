"""Wait on conditions, never on sleeps."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any


async def until(
    predicate: Callable[[], Any | Awaitable[Any]], timeout_s: float = 60.0, what: str = ""
) -> Any:
    """The first truthy value of `predicate` (plain or async); fails the test after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = predicate()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what or inspect.getsource(predicate).strip()}")
        await asyncio.sleep(0.02)


def until_sync(predicate: Callable[[], Any], timeout_s: float = 60.0, what: str = "") -> Any:
    """`until` for tests without an event loop."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what or inspect.getsource(predicate).strip()}")
        time.sleep(0.02)
