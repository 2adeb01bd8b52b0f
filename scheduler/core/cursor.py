"""A walk along the ends of a queue's lines that can be interrupted: the lines may change between its steps."""

import bisect
from collections import deque
from collections.abc import Iterable

from scheduler.core.band import Band
from scheduler.core.flow import QueuedRequest, SortKey


class QueueCursor:
    """Every ticket of every line that waits now, line by line, newest first."""

    def __init__(self, bands: Iterable[Band]) -> None:
        self._flows = deque((band, flow.name) for band in bands for flow in band)
        self._before: SortKey | None = None

    def next(self) -> QueuedRequest | None:
        """The next one that still waits; None at the end."""
        while self._flows:
            band, name = self._flows[0]
            flow = band.flows.get(name)
            waiting = flow.waiting if flow is not None else []
            before = self._before
            rank = len(waiting) if before is None else bisect.bisect_left(waiting, before)
            if rank:
                self._before = waiting[rank - 1]
                return self._before[2]
            self.skip_flow()
        return None

    def skip_flow(self) -> None:
        """Those before the last one in its line need not be looked at."""
        self._flows.popleft()
        self._before = None
