"""Simulated time: a heap of actions, run in order of their times and, at equal times, of insertion."""

import heapq
from collections.abc import Callable
from typing import Any

Action = Callable[..., None]


class Timeline:
    """The event queue of one run. No action runs before `now`."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Action, tuple[Any, ...]]] = []
        self._made = 0

    def at(self, when: float, action: Action, *args: Any) -> None:
        """Call `action(*args)` at simulated second `when`. Raises ValueError when that is in the past."""
        if when < self.now:
            raise ValueError(f"an event at {when:.6f} s, but it is {self.now:.6f} s already")
        self._made += 1
        heapq.heappush(self._heap, (when, self._made, action, args))

    def after(self, delay_s: float, action: Action, *args: Any) -> None:
        """Call `action(*args)` `delay_s` from now."""
        self._made += 1
        heapq.heappush(self._heap, (self.now + delay_s, self._made, action, args))

    def run(self, going: Callable[[], bool], until: float) -> None:
        """Run due actions until none is left, `going` returns False, or `until` (seconds) is reached."""
        heap = self._heap
        pop = heapq.heappop
        while heap and going():
            when, _, action, args = heap[0]
            if when > until:
                self.now = until
                return
            pop(heap)
            self.now = when
            action(*args)
