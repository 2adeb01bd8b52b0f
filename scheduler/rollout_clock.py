"""How long a rollout stands still."""

import math

import msgspec

from workers.rollouts import RolloutState


class RolloutClock(msgspec.Struct):
    """How long a rollout stands still, and in which state."""

    state: RolloutState
    state_since: float
    since: float
    done: int = 0
    """The most replicas, or hosts, that were done in this state so far."""
    left: float = math.inf
    """The fewest that were not."""

    def note(self, done: int, left: int, now: float, *, settled: bool) -> None:
        """Start anew with each progress, and while none is due. What comes and goes makes none."""
        if settled or done > self.done or left < self.left:
            self.since = now
        self.done, self.left = max(done, self.done), min(left, self.left)
