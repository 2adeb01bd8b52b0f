"""When a connection that collects small messages writes them: with this tick of the event loop, or a little later."""

import asyncio
from collections.abc import Callable


class FlushTimer:
    """Calls `flush` once for all requests of `due` before it. Belongs to the running event loop."""

    __slots__ = ("_delayed", "_flush", "_handle", "_loop")

    def __init__(self, flush: Callable[[], None]) -> None:
        self._flush = flush
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.Handle | None = None
        self._delayed = False
        """Whether the flush that is due is later than this tick."""

    def due(self, delay_s: float = 0.0) -> None:
        """Flush at the end of this event loop tick, or after `delay_s` seconds unless a flush is due before."""
        if self._handle is not None and (delay_s or not self._delayed):
            return
        self.cancel()
        self._delayed = delay_s > 0.0
        if delay_s:
            self._handle = self._loop.call_later(delay_s, self._run)
        else:
            self._handle = self._loop.call_soon(self._run)

    def cancel(self) -> None:
        """Forget the flush that is due."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _run(self) -> None:
        self._handle = None
        self._flush()
