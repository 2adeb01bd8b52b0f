"""How many replicas the demand that is bound to some places needs there: floors under the plan of a model. Pure.

Demand that may be served anywhere has no floor: it is part of the model's whole demand, which decides how many replicas
there are. A floor only says how many of them, at least, are in its places.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from scheduler.core.autoscale.state import Binding, PlaceLimits, ReplicaObservation

_ANY = 1 << 20
"""Stands for the number of names where any will do."""


class Place(NamedTuple):
    """Where a replica is, or would be."""

    region: str
    gpu: str
    kind: str
    """Of its host."""


def place_of(replica: ReplicaObservation) -> Place:
    """Where a replica is."""
    return Place(replica.region, replica.gpu, replica.kind)


@dataclass(frozen=True, slots=True)
class Floor:
    """Replicas that the demand of some places needs there, that of parts of these places included."""

    where: Binding
    need: int
    """At the last observation."""
    recent: int = 0
    """Within the last minute: another model may take the rest."""
    kept: int = 0
    """Within the time for which removals are observed."""
    held: int = 0
    """Requests that wait for a replica there."""
    reason: str = ""
    least: int = 0
    """Replicas that an admin wants awake there always."""
    served: bool = True
    """Whether its demand is part of the whole, since a replica there is awake or comes. Else what is missing there is
    missing beside the rest."""
    comes: int = 0
    """Of `need`, those for which a host comes: they keep their claim."""
    open: bool = True
    """Whether a host may be created there now."""

    def has(self, replica: ReplicaObservation) -> bool:
        """Whether a replica is in these places."""
        return self.where.allows(*place_of(replica))


def room_at(limits: Iterable[PlaceLimits], awake: Sequence[Place], place: Place) -> int:
    """How many more replicas may be awake in a place, where those that are or come are in the places `awake`."""
    return min(
        (
            each.most - sum(each.where.allows(*other) for other in awake)
            for each in limits
            if each.where.allows(*place)
        ),
        default=_ANY,
    )


def in_order(floors: Iterable[Floor]) -> list[Floor]:
    """The floors with those of parts of places before those of the whole."""

    def size(floor: Floor) -> tuple[int, Binding]:
        where = floor.where
        return sum(len(names) or _ANY for names in (where.regions, where.gpus, where.kinds)), where

    return sorted(floors, key=size)


def shortfalls(
    floors: Sequence[Floor],
    awake: Sequence[ReplicaObservation],
    count: Callable[[Floor], int] = lambda floor: floor.need,
) -> list[tuple[Floor, int]]:
    """The floors, which are `in_order`, under which there are too few of `awake`, and how many more each needs.

    A replica that one floor needs counts for every floor that has all its places. `count` tells how many a floor asks
    for.
    """
    found: list[tuple[Floor, int]] = []
    for floor in floors:
        have = sum(floor.has(replica) for replica in awake)
        have += sum(more for part, more in found if part.where.within(floor.where))
        if (more := count(floor) - have) > 0:
            found.append((floor, more))
    return found


def within_reach(floor: Floor, replicas: int) -> Floor:
    """A floor of places in which no host may be created, with no more than the `replicas` that are there."""
    return replace(
        floor,
        need=min(floor.need, replicas),
        recent=min(floor.recent, replicas),
        kept=min(floor.kept, replicas),
        least=min(floor.least, replicas),
    )


def allowed(floor: Floor, limits: Sequence[PlaceLimits], places: Iterable[Place]) -> Floor:
    """A floor whose minimum is no more than the maxima of regions and kinds leave room for among `places`, in which
    replicas are or may be."""
    there = [place for place in places if floor.where.allows(*place)]
    most = {each.where: each.most for each in limits}
    by_region = sum(most.get(Binding((name,)), _ANY) for name in {place.region.lower() for place in there})
    by_kind = sum(most.get(Binding(kinds=(name,)), _ANY) for name in {place.kind for place in there})
    return replace(floor, least=min(floor.least, by_region, by_kind))


def apart(short: Sequence[tuple[Floor, int]], places: Collection[Place]) -> int:
    """How many replicas are missing at least under `short`, where one may serve several floors that overlap.

    `places`: those in which replicas are or may be.
    """
    found: list[Binding] = []
    count = 0
    for floor, more in short:
        both = [place for place in places if floor.where.allows(*place)] if found else []
        if not any(
            not other.within(floor.where) and any(other.allows(*place) for place in both) for other in found
        ):
            found.append(floor.where)
            count += more
    return count


def keeps(floors: Sequence[Floor], awake: Sequence[ReplicaObservation], gone: ReplicaObservation) -> bool:
    """Whether `gone`, one of `awake`, may be removed: no floor had fewer replicas than it kept lately."""
    return all(
        sum(floor.has(replica) for replica in awake) > floor.kept for floor in floors if floor.has(gone)
    )


def spare_first(floors: Sequence[Floor], order: Sequence[ReplicaObservation]) -> list[ReplicaObservation]:
    """`order` with those that no floor needs before the others."""
    spare = removable_by_floors(floors, order, order)
    return [*spare, *(replica for replica in order if replica not in spare)] if floors else list(order)


def removable_by_floors(
    floors: Sequence[Floor], awake: Sequence[ReplicaObservation], order: Sequence[ReplicaObservation]
) -> list[ReplicaObservation]:
    """Those of `order`, which are among `awake`, that can be removed one after the other with every floor kept."""
    left, gone = list(awake), list[ReplicaObservation]()
    for replica in order:
        if keeps(floors, left, replica):
            left.remove(replica)
            gone.append(replica)
    return gone
