"""Connects API processes with the routing system under test: delayed messages, decisions and restarts."""

import math
from collections.abc import Callable
from typing import Any

from sim.pool.contract import Decision, Restartable, Routing
from sim.pool.timeline import Timeline


class RoutingLink:
    """Delivers messages to a routing system with their delay and collects its decisions after each."""

    def __init__(self, timeline: Timeline, routing: Routing, on_decision: Callable[[Decision], None]) -> None:
        """`on_decision` is called with each decision at the simulated time at which it is made."""
        self._timeline = timeline
        self._routing = routing
        self._on_decision = on_decision
        self._wake_at = math.inf
        """Time of the planned `collect_decisions` in seconds; infinity = none planned."""
        self._on_reconnect: Callable[[], None] = lambda: None
        self._unavailable_until = 0.0
        """Time in seconds at which a restarting central scheduler is back; messages to it wait until then."""

    @property
    def unavailable(self) -> bool:
        """Whether the central scheduler is restarting."""
        return self._timeline.now < self._unavailable_until

    def send(self, delay_s: float, action: Callable[..., None], *args: Any) -> None:
        """Run `action` at the routing system: after `delay_s` seconds if it is central, else at once in the API
        process.
        """
        if self._routing.central:
            self._timeline.after(delay_s, self.deliver, action, args)
        else:
            self.deliver(action, args)

    def deliver(self, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        """Run `action` now, or when the scheduler is back; then collect decisions."""
        if self.unavailable:
            self._timeline.at(self._unavailable_until, self.deliver, action, args)
            return
        action(*args)
        self.collect_decisions()

    def collect_decisions(self) -> None:
        """Pass on the routing system's decisions and plan its next wake."""
        now = self._timeline.now
        for decision in self._routing.decide(now):
            self._on_decision(decision)
        wake_at = self._routing.next_wake(now)
        if wake_at is not None and not now < self._wake_at <= wake_at:
            self._wake_at = max(now, wake_at)
            self._timeline.at(self._wake_at, self._wake, self._wake_at)

    def restart(self, away_s: float, on_reconnect: Callable[[], None]) -> None:
        """Replace the scheduler process after `away_s` seconds; routing without such a process is unaffected.

        `on_reconnect` is called once clients have announced their state; agents then announce theirs.
        """
        if isinstance(self._routing, Restartable):
            self._on_reconnect = on_reconnect
            self._unavailable_until = self._timeline.now + away_s
            self._timeline.at(self._unavailable_until, self._resume, self._unavailable_until)

    def _resume(self, at: float) -> None:
        if at == self._unavailable_until and isinstance(self._routing, Restartable):
            self._routing.restart(at)
            self._on_reconnect()
            self.collect_decisions()

    def _wake(self, at: float) -> None:
        if at == self._wake_at:
            self._wake_at = math.inf
            if not self.unavailable:
                self.collect_decisions()
