"""Which model gets GPUs that several want: who may take them from whom, and when. Pure.

A replica's claim has a rank. The minimum of a model comes first, then the first replica of a model that is needed, then
all others by revenue. A higher rank takes GPUs from a lower one. Among others, revenue decides, less the time of the
switch. Two models that both need their only replica take turns, for as long as requests are held for the one that
rests: so every model with held requests is served after a bounded time. A turn lasts at least a multiple of what the
switch to it and back takes, and longer where the model that serves earns more.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from scheduler.core.autoscale.floors import Floor, Place
from scheduler.core.autoscale.ladder import RESTING
from scheduler.core.autoscale.state import ModelSpec, ReplicaObservation, Rung

MIN_STAY_S = 60.0
"""Seconds after a wake in which a replica is not put to sleep for another model."""
SWAP_GAIN = 1.25
"""Factor by which another model's revenue must be higher, so that noise of the rates changes nothing."""
PAYS_WITHIN_S = 600.0
"""Seconds in which a switch for revenue must have paid for the time that it takes."""
TURN_SWITCHES = 4.0
"""A turn lasts at least so many times the switch to it and back, so that a fifth of the time at most goes to that."""
LONGEST_TURN = 8.0
"""A turn is at most so many times longer because its model earns more."""


class Rank(IntEnum):
    """How strong a claim is."""

    OTHER = 1
    FIRST = 2
    """The only replica of a model that is needed."""
    MINIMUM = 3
    """One of the replicas that an admin wants awake always."""


@dataclass(frozen=True, slots=True)
class Desired:
    """Desired replicas of one model."""

    target: int
    """Replicas awake for the whole demand, without those of hosts in creation."""
    needed: int
    """Replicas that the load of the last minute needs; another model may take the rest."""
    rate: float
    """Requests per second, for the revenue of its GPUs."""
    held: int = 0
    """Requests that wait for a replica."""
    busy: bool = True
    """Whether requests run or wait."""
    unserved_s: float = 0.0
    """Seconds since a replica was awake."""
    floors: tuple[Floor, ...] = ()
    """Replicas needed in some places, without those of hosts in creation; `in_order`."""
    most: int = 1 << 30
    """Most replicas awake, without those of hosts in creation."""
    coming: tuple[Place, ...] = ()
    """Where the replicas are that hosts in creation will run."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What speaks for a replica of a model being awake."""

    rank: Rank
    usd_per_s: float
    """Revenue per second."""


def claim(spec: ModelSpec, desired: Desired, nth: int, *, there: Rank = Rank.OTHER) -> Claim:
    """The claim of a model's `nth` replica; one that is not needed earns nothing.

    `there`: its rank by what is needed in its place.
    """
    usd_per_s = spec.usd_per_request * desired.rate / desired.needed if nth <= desired.needed else 0.0
    if nth <= spec.min_awake:
        return Claim(Rank.MINIMUM, usd_per_s)
    first = Rank.FIRST if nth == 1 and desired.needed > 0 else Rank.OTHER
    return Claim(max(first, there), usd_per_s)


def precedence(
    spec: ModelSpec, desired: Desired, nth: int, *, there: Rank = Rank.OTHER
) -> tuple[int, bool, float]:
    """Key of the order in which missing replicas are woken, the largest first.

    Among models without a replica, those for which requests are held come first, the longest unserved before others.
    """
    own = claim(spec, desired, nth, there=there)
    if own.rank is Rank.FIRST and desired.held:
        return own.rank, True, desired.unserved_s
    return own.rank, False, own.usd_per_s / max(1, spec.capacity.gpus)


def there_and_back_s(claimant: ModelSpec, wake_s: float, victim: ModelSpec) -> float:
    """Seconds of a switch and of the one back: both drain, and both wake."""
    back = min((victim.ladder[rung].wake_s for rung in RESTING if rung in victim.ladder), default=0.0)
    return victim.drain_s + wake_s + claimant.drain_s + back


def turn_s(victim: Claim, claimant: Claim, switches_s: float, *, busy: bool) -> float:
    """Seconds for which the only replica of a model stays awake although requests are held for another model.

    `switches_s`: the switch there and back. Longer where the victim earns more and is `busy`.
    """
    least = max(MIN_STAY_S, TURN_SWITCHES * switches_s)
    if not busy or victim.usd_per_s <= claimant.usd_per_s:
        return least
    ratio = victim.usd_per_s / claimant.usd_per_s if claimant.usd_per_s > 0.0 else LONGEST_TURN
    return least * min(ratio, LONGEST_TURN)


@dataclass(frozen=True, slots=True)
class Victim:
    """An awake replica whose GPUs another model claims."""

    replica: ReplicaObservation
    spec: ModelSpec
    claim: Claim
    busy: bool


def may_take(own: Claim, spec: ModelSpec, wake_s: float, held: int, victims: Sequence[Victim]) -> bool:
    """Whether a replica of `spec`, which wakes in `wake_s`, may have the GPUs of all `victims`.

    `held`: requests that wait for its model.
    """
    if any(each.claim.rank > own.rank for each in victims):
        return False
    equals = [each for each in victims if each.claim.rank is own.rank]
    if not equals:
        return True
    match own.rank:
        case Rank.MINIMUM:
            return False
        case Rank.FIRST:
            return turn_in_s(own, spec, wake_s, held, equals) <= 0.0
        case Rank.OTHER:
            lost_s = wake_s + max(each.spec.drain_s for each in victims)
            gain = own.usd_per_s * max(0.0, 1.0 - lost_s / PAYS_WITHIN_S)
            return gain > SWAP_GAIN * sum(each.claim.usd_per_s for each in victims)


def turn_in_s(own: Claim, spec: ModelSpec, wake_s: float, held: int, victims: Sequence[Victim]) -> float:
    """Seconds until the turns of all `victims` end, so that the first replica of `spec` may have their GPUs.

    `wake_s` and `held` as for `may_take`. Infinite where it is not a matter of turns.
    """
    if own.rank is not Rank.FIRST or not held or any(each.claim.rank > own.rank for each in victims):
        return math.inf
    return max(
        (
            max(
                (
                    turn_s(each.claim, own, there_and_back_s(spec, wake_s, each.spec), busy=each.busy)
                    if each.claim.rank is own.rank
                    else MIN_STAY_S
                )
                - (
                    each.replica.since_s if each.replica.rung is Rung.AWAKE else 0.0
                ),  # else it only wakes now
                each.replica.ready_in_s,
            )
            for each in victims
        ),
        default=math.inf,
    )
