"""An asyncio event loop whose timers take no time: when nothing else is to do, its clock jumps to the next of them."""

import asyncio
import selectors
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Counts the time that the loop would wait in place of waiting."""

    waited = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0.0:
            self.waited += timeout
        return super().select(0)


class InstantLoop(asyncio.SelectorEventLoop):
    """The loop. Its time begins at 0."""

    def __init__(self) -> None:
        self._selector_of_time = _Selector()
        super().__init__(self._selector_of_time)

    def time(self) -> float:
        """Seconds that its timers have taken so far."""
        return self._selector_of_time.waited


class LoopClock:
    """The platform's clock on the running loop's time."""

    def now(self) -> datetime:
        """The instant."""
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        """Seconds of the running loop."""
        return asyncio.get_running_loop().time()


def run_instantly(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a loop of its own."""
    with asyncio.Runner(loop_factory=InstantLoop) as runner:
        return runner.run(main)
