"""Where a request may run, as the queue uses it: among the places that a model's replicas are in."""

from collections.abc import Collection, Container

from scheduler.wire import PlaceRequest

Place = tuple[str, str, str, bool]
"""Region, class of GPU, during a canary the track of a replica, and whether its engine takes adapters."""
Where = frozenset[Place] | None
"""The places of a model's replicas that a request may use; None = all of them."""
LOOK_S = 0.5
"""Seconds after which requests for places without room are tried again, so that resting replicas there are woken."""
MAX_TRIES = 64
"""Tries of requests for some places in one pass."""


def where_of(request: PlaceRequest, known: Collection[Place]) -> Where:
    """Which of the `known` places a request may use.

    What it names beside them makes no difference, so there are only as many sets as places can form.
    """
    if not request.bound:
        return None
    allowed = frozenset(
        place
        for place in known
        if request.allows(place[0], place[1], adapters=place[3])
        and (not request.track or place[2] in ("", request.track))
    )
    return None if allowed and len(allowed) == len(known) else allowed


class Tries:
    """The requests for some places that one pass has tried, and which it need not try.

    Of requests for the same places a few are tried, and where no replica has room one from time to time. Otherwise the
    queue for a full region would use up the pass, and requests for other regions would wait for it.
    """

    def __init__(
        self, open_places: Container[Place], looked: dict[Where, float], most: int, now: float
    ) -> None:
        """`open_places` have a replica with room. `looked`: when each set without room was tried last, kept between
        passes. `most`: tries of one set in this pass."""
        self._open, self._looked, self._most, self._now = open_places, looked, most, now
        self._count = 0
        self._tries: dict[Where, int] = {}

    def over(self, where: Where) -> bool:
        """Whether no more requests for these places are tried in this pass; never for those that may run anywhere."""
        if where is None:
            return False
        made = self._tries.get(where, 0)
        if self._count >= MAX_TRIES or made >= self._most:
            return True
        if self.has_room(where):
            return False
        return made > 0 or self._now - self._looked.get(where, float("-inf")) < LOOK_S

    def has_room(self, where: Where) -> bool:
        """Whether a replica in one of these places had room when the pass began."""
        return where is None or any(place in self._open for place in where)

    def add(self, where: Where) -> None:
        """Note that a request for these places fits nowhere."""
        self._count += 1
        self._tries[where] = self._tries.get(where, 0) + 1
        if not self.has_room(where):
            self._looked[where] = self._now
