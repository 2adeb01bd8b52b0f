"""A walk along the ends of a queue's lines that can be interrupted: the lines may change between its steps."""

import bisect
from collections import deque
from collections.abc import Iterable

from scheduler.core.band import Band
from scheduler.core.queue import Place, Ticket


class Walk:
    """Every ticket of every line that waits now, line by line, newest first."""

    def __init__(self, bands: Iterable[Band]) -> None:
        self._lines = deque((band, line.name) for band in bands for line in band)
        self._before: Place | None = None

    def next(self) -> Ticket | None:
        """The next one that still waits; None at the end."""
        while self._lines:
            band, name = self._lines[0]
            line = band.lines.get(name)
            waiting = line.waiting if line is not None else []
            before = self._before
            rank = len(waiting) if before is None else bisect.bisect_left(waiting, before)
            if rank:
                self._before = waiting[rank - 1]
                return self._before[2]
            self.skip_line()
        return None

    def skip_line(self) -> None:
        """Those before the last one in its line need not be looked at."""
        self._lines.popleft()
        self._before = None
