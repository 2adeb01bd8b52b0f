"""An iterator over the queued requests of all flows that tolerates changes of the queue between its steps."""

import bisect
from collections import deque
from collections.abc import Iterable

from scheduler.core.band import Band
from scheduler.core.flow import QueuedRequest, SortKey


class QueueCursor:
    """Every queued request, flow by flow, newest first."""

    def __init__(self, bands: Iterable[Band]) -> None:
        self._flows = deque((band, flow.name) for band in bands for flow in band)
        self._before: SortKey | None = None

    def next(self) -> QueuedRequest | None:
        """The next request that is still queued; None at the end."""
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
        """Go on with the next flow."""
        self._flows.popleft()
        self._before = None
