"""Between API processes and the routing system under test: messages with their delays, decisions, its restarts."""

import math
from collections.abc import Callable
from typing import Any

from sim.pool.contract import Decision, Restartable, Routing
from sim.pool.timeline import Timeline


class RoutingLink:
    """Carries what is said to a routing system, and asks it what to do after everything it heard."""

    def __init__(self, timeline: Timeline, routing: Routing, decided: Callable[[Decision], None]) -> None:
        """`decided` is told of each decision at the moment in which it is made."""
        self._timeline = timeline
        self._routing = routing
        self._decided = decided
        self._ask_at = math.inf
        """When the routing system wants to be asked again."""
        self._reconnected: Callable[[], None] = lambda: None
        self._away_until = 0.0
        """Messages to a central scheduler wait until then: it is being restarted."""

    @property
    def away(self) -> bool:
        """Whether nobody listens now."""
        return self._timeline.now < self._away_until

    def tell(self, delay_s: float, action: Callable[..., None], *args: Any) -> None:
        """Run `action` where the routing system is: across the network, or in the API process itself."""
        if self._routing.central:
            self._timeline.after(delay_s, self.hear, action, args)
        else:
            self.hear(action, args)

    def hear(self, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        """Run `action` now, or when the scheduler is back; then ask for decisions."""
        if self.away:
            self._timeline.at(self._away_until, self.hear, action, args)
            return
        action(*args)
        self.ask()

    def ask(self) -> None:
        """Have the routing system decide."""
        now = self._timeline.now
        for decision in self._routing.decide(now):
            self._decided(decision)
        wake_at = self._routing.next_wake(now)
        if wake_at is not None and not now < self._ask_at <= wake_at:
            self._ask_at = max(now, wake_at)
            self._timeline.at(self._ask_at, self._ask_again, self._ask_at)

    def restart(self, away_s: float, reconnected: Callable[[], None]) -> None:
        """The scheduler process dies and is replaced after `away_s`; routing without such a process is unharmed.

        `reconnected` is called once clients have announced: agents then tell all they know.
        """
        if isinstance(self._routing, Restartable):
            self._reconnected = reconnected
            self._away_until = self._timeline.now + away_s
            self._timeline.at(self._away_until, self._back, self._away_until)

    def _back(self, at: float) -> None:
        if at == self._away_until and isinstance(self._routing, Restartable):
            self._routing.restart(at)
            self._reconnected()
            self.ask()

    def _ask_again(self, at: float) -> None:
        if at == self._ask_at:
            self._ask_at = math.inf
            if not self.away:
                self.ask()
