"""Commands to PostgreSQL with a bound on the wait for them, which are never cancelled themselves."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

import asyncpg
from sqlalchemy.exc import SQLAlchemyError

FAILURES = (SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError)
"""What PostgreSQL's absence raises; TimeoutError is an OSError."""
T = TypeVar("T")

log = logging.getLogger(__name__)


class UnbrokenWork:
    """Awaits work for a bounded time.

    A cancelled command would leave its connection in an unknown state (core/db.py).
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def within(self, seconds: float, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`. Raises TimeoutError after `seconds`; `work` goes on then."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if not done:
            task.add_done_callback(_forget)
            raise TimeoutError(f"PostgreSQL has not answered for {seconds:.0f} s")
        return task.result()

    async def close(self, seconds: float) -> None:
        """Wait for work in progress, at most `seconds`."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)


def _forget(task: "asyncio.Task[Any]") -> None:
    """Take the late result of a task whose caller has given up."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("late work on stored responses failed: %r", error)
