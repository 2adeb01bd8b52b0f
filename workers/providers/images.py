"""Replaces the hosts of a group that were not made from the group's image, one at a time: a pure function.

With `surge` a host of the new image comes first, and an old one is given up when all new ones have served for a while.
Without, an old one is drained and destroyed first, for where there is no room. An image is given up for the one of
before when GIVE_UP_AFTER creations fail and none of its hosts has been fit to serve.
"""

from collections.abc import Callable, Iterable

import msgspec

from workers.providers.intents import Intent, IntentState
from workers.providers.interface import DesiredHosts

GIVE_UP_AFTER = 2
"""Creations that were refused, never appeared, did not start or were refused by their checks."""


class Move(msgspec.Struct, frozen=True):
    """What the replacement of a group needs now."""

    extra: int = 0
    """Hosts beside the desired number: 1 for a surge, -1 while an old host leaves before its successor comes."""
    retire: Intent | None = None
    """The host whose turn it is."""
    give_up: bool = False
    """Whether the image is given up."""


def is_outdated(intent: Intent, image: str) -> bool:
    """Whether a host was made from another image than `image`; none is where that is empty."""
    return bool(image) and intent.state is not IntentState.WRITTEN and intent.image != image


def next_move(row: DesiredHosts, intents: Iterable[Intent], has_loaded: Callable[[Intent], bool]) -> Move:
    """The next step of the group's replacement. `intents`: the group's, those that ended lately included."""
    if not row.image:
        return Move()
    known = list(intents)
    if _has_failed(row, known):
        return Move(give_up=True)
    there = [one for one in known if one.state is not IntentState.ENDED]
    if any(not one.wanted and is_outdated(one, row.image) for one in there):
        return Move(0 if row.surge else -1)
    held = [one for one in there if one.wanted and one.reclaim_at is None]
    old = [one for one in held if is_outdated(one, row.image)]
    if not old or not row.count:
        return Move()
    surge = int(row.surge)
    fresh = [one for one in held if one not in old]
    if len(held) < row.count + surge or not all(map(has_loaded, fresh)):
        return Move(surge)
    return Move(surge - 1, min(old, key=lambda one: (has_loaded(one), one.requested_at, one.name)))


def _has_failed(row: DesiredHosts, intents: Iterable[Intent]) -> bool:
    """Whether the group's image failed since it was set, and never gave a host that is fit to serve."""
    new = [one for one in intents if one.image == row.image]
    since = [one for one in new if one.failed_at and (row.image_at is None or one.failed_at >= row.image_at)]
    return sum(one.failures for one in since) >= GIVE_UP_AFTER and not any(one.first_fit_at for one in new)
