"""Acquire several things at once, all or none.

Each step is an awaitable with its undoing. When one fails or the caller is cancelled, whatever succeeded, now or
later, is undone exactly once. Steps that are still running are cancelled only if they said that they may be: a hold
must never be cancelled in flight, its late success is voided instead.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Step(Generic[T]):
    """Something to acquire, and how to give it back."""

    def __init__(
        self, acquire: Coroutine[Any, Any, T], undo: Callable[[T], None], *, cancellable: bool = False
    ) -> None:
        self.task: asyncio.Task[T] = asyncio.ensure_future(acquire)
        self._undo = undo
        self._cancellable = cancellable

    @property
    def failed(self) -> bool:
        """Whether it has ended without success."""
        return self.task.done() and (self.task.cancelled() or self.task.exception() is not None)

    def abandon(self) -> None:
        """Undo it if it succeeded, or as soon as it does."""
        if self._cancellable:
            self.task.cancel()
        if self.task.done():
            self._give_back(self.task)
        else:
            self.task.add_done_callback(self._give_back)

    def _give_back(self, task: "asyncio.Task[T]") -> None:
        if not task.cancelled() and task.exception() is None:
            self._undo(task.result())


async def acquire_together(*steps: Step[Any]) -> None:
    """Wait until every step has succeeded; then `step.task.result()` holds each result.

    Otherwise abandon all of them and raise the error of the first failed step in order.
    """
    try:
        await asyncio.wait([step.task for step in steps], return_when=asyncio.FIRST_EXCEPTION)
    except asyncio.CancelledError:
        for step in steps:
            step.abandon()
        raise
    failed = next((step for step in steps if step.failed), None)
    if failed is None:
        return
    for step in steps:
        step.abandon()
    failed.task.result()
