"""Which requests use what is rolled out, while that is a canary."""

import math

from scheduler.core.canary import Canary
from workers.rollouts import Rollout, RolloutState


def has_canary(rollout: Rollout) -> bool:
    """Whether what is new serves its share alone: a canary, or what a roll-back has left of one."""
    if rollout.state is not RolloutState.ROLLING_BACK:
        return rollout.state is RolloutState.CANARY
    share = math.ceil(rollout.progress.wanted * rollout.strategy.canary_percent / 100)
    return rollout.strategy.has_canary and rollout.progress.updated <= max(1, share)


def canary_of(rollout: Rollout, agents: frozenset[str] | None) -> Canary:
    """Which requests use it. `agents`: those of the hosts of a new image; None = a version of engines is rolled out."""
    strategy = rollout.strategy
    return Canary(
        rollout.after.version,
        strategy.canary_percent,
        frozenset(strategy.canary_tenants),
        strategy.canary_by == "request",
        str(rollout.rollout_id),
        agents,
    )
