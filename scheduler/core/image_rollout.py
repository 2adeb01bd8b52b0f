"""What a rollout of an image does next: whether its canary goes on, and whether it ends. Pure.

The states are those of scheduler/core/rollout.py. `jobs` replaces the hosts as far as the state allows
(workers/providers/images.py), so nothing is commanded here.
"""

from collections.abc import Sequence

import msgspec

from scheduler.core.rollout import MAX_FAILURES, Decision, Member, Verdict
from workers.providers.images import GIVE_UP_AFTER
from workers.replica_states import Phase
from workers.rollouts import RolloutState, Strategy

SEEN_WITHIN_S = 15.0
"""Seconds after the beginning of a roll-back in which a pass that read the state before it may still create a host."""


class ImageHost(msgspec.Struct, frozen=True):
    """A host of the group that a provider was asked for, and that has not ended."""

    name: str
    new: bool
    """Whether it is made from the new image."""
    wanted: bool
    """Whether it stays."""


class ImageHosts(msgspec.Struct, frozen=True):
    """The hosts of a rollout's group, as PostgreSQL has them."""

    count: int
    """Hosts that are desired."""
    hosts: tuple[ImageHost, ...] = ()
    failures: int = 0
    """Creations of hosts of the new image that failed since one of them was last fit to serve."""
    why: str = ""
    """How the last of them failed."""


class ImageSituation(msgspec.Struct):
    """All that a decision depends on."""

    state: RolloutState
    strategy: Strategy
    canaries: int
    """Hosts of the new image while it is a canary."""
    seen: ImageHosts
    members: dict[str, list[Member]]
    """Replicas by the name of their host."""
    verdict: Verdict = Verdict()
    stalled_s: float = 0.0
    """Seconds since the last progress."""
    state_s: float = 0.0
    """Seconds since the state last changed."""

    def wanted(self, *, new: bool) -> list[ImageHost]:
        """The hosts of one image that stay."""
        return [host for host in self.seen.hosts if host.wanted and host.new is new]

    def serves(self, host: ImageHost) -> bool:
        """Whether all replicas of a host that do not rest serve, and for long enough; one at least."""
        awake = [member for member in self.members.get(host.name, []) if not member.rests]
        least_s = self.strategy.min_ready_s
        return bool(awake) and all(member.serves and member.ready_s >= least_s for member in awake)

    @property
    def served(self) -> int:
        """Hosts of the new image that serve."""
        return sum(map(self.serves, self.wanted(new=True)))

    @property
    def is_settled(self) -> bool:
        """Whether it is a canary whose hosts serve, so that no further progress is due."""
        return self.state is RolloutState.CANARY and self.served >= self.canaries

    @property
    def done_and_left(self) -> tuple[int, int]:
        """Hosts that are as they are to be, and those that are to be replaced."""
        if self.state is RolloutState.ROLLING_BACK:
            return len(self.wanted(new=False)), len(self.wanted(new=True))
        return self.served, len(self.wanted(new=False))


def decide_image(now: ImageSituation) -> Decision:
    """The state from now on, and why."""
    match now.state:
        case RolloutState.CANARY | RolloutState.PROGRESSING:
            if why := _failure(now):
                return Decision(RolloutState.ROLLING_BACK, why)
            return _canary(now) if now.state is RolloutState.CANARY else _progress(now)
        case RolloutState.ROLLING_BACK:
            return _roll_back(now)
        case ended:
            return Decision(ended, "")


def _failure(now: ImageSituation) -> str:
    """Why the rollout must not go on; empty = it may."""
    seen, strategy = now.seen, now.strategy
    if seen.failures >= GIVE_UP_AFTER:
        return f"{seen.failures} hosts of the image failed; the last one: {seen.why}"
    for member in _of_new_hosts(now):
        if member.phase == Phase.UNFIT:
            return f"{member.name} is not fit to serve: {member.detail}"
        if member.failures >= MAX_FAILURES:
            return f"{member.name} failed {member.failures} times: {member.detail}"
    if now.verdict.regression:
        return f"the new image is worse: {now.verdict.regression}"
    if not seen.count:
        return "no hosts of the group are desired any more"
    if not now.is_settled and now.stalled_s > strategy.progress_deadline_s:
        return f"no progress for {strategy.progress_deadline_s:.0f} s{_waits_for(now)}"
    if now.state is RolloutState.CANARY and now.state_s > strategy.canary_deadline_s:
        return f"the canary was not promoted within {strategy.canary_deadline_s:.0f} s"
    return ""


def _waits_for(now: ImageSituation) -> str:
    """What a rollout that stands still waits for, as a clause."""
    if now.seen.why:
        return f": {now.seen.why}"
    late = [host.name for host in now.wanted(new=True) if not now.serves(host)]
    return f": {late[0]} does not serve" if late else ": no host of the image was created"


def _of_new_hosts(now: ImageSituation) -> Sequence[Member]:
    return [member for host in now.wanted(new=True) for member in now.members.get(host.name, [])]


def _canary(now: ImageSituation) -> Decision:
    after_s = now.strategy.promote_after_s
    if now.is_settled and 0 < after_s <= now.state_s and now.verdict.enough:
        return Decision(RolloutState.PROGRESSING, f"promoted by rule: no regression within {after_s:.0f} s")
    return Decision(now.state, "")


def _progress(now: ImageSituation) -> Decision:
    new = now.wanted(new=True)
    if now.wanted(new=False) or len(new) < now.seen.count or now.served < len(new):
        return Decision(now.state, "")
    return Decision(RolloutState.PROMOTED, f"all {len(new)} hosts have the new image")


def _roll_back(now: ImageSituation) -> Decision:
    left = now.wanted(new=True)
    if not left and now.state_s >= SEEN_WITHIN_S:
        return Decision(RolloutState.ROLLED_BACK, "")
    if left and now.stalled_s > now.strategy.progress_deadline_s:
        names = ", ".join(host.name for host in left)
        return Decision(
            RolloutState.ROLLED_BACK,
            f"{names} could not be replaced in time; `penstock hosts set-image` with the image of before does that",
        )
    return Decision(now.state, "")
