"""Replaces the hosts of a group that were not made from the group's image, one at a time: pure functions.

With `surge` a host of the new image comes first, and an old one is given up when all new ones have served for a while.
Without, an old one is drained and destroyed first, for where there is no room. An image is given up for the one of
before when GIVE_UP_AFTER creations fail and none of its hosts has been fit to serve.

A rollout of an image limits how many hosts are made from it, and the scheduler decides when it ends. Rolled back, the
hosts that were made from it are the ones that are replaced.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from workers.providers.intents import Intent, IntentState
from workers.providers.interface import DesiredHosts, ImageRollout

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


def is_outdated(intent: Intent, row: DesiredHosts) -> bool:
    """Whether a host is to be replaced, because it was made from another image than its group's hosts are to have."""
    if intent.state is IntentState.WRITTEN:
        return False
    if row.rollout is None:
        return bool(row.image) and intent.image != row.image
    return (intent.image == row.rollout.image) == (row.rollout.most == 0)


def next_image(row: DesiredHosts, intents: Iterable[Intent]) -> str:
    """The image of the group's next host; empty = the provider's settings say. `intents`: the group's."""
    rollout = row.rollout
    made = 0 if rollout is None else len([one for one in intents if _is_made_from(one, rollout.image)])
    return row.image if rollout is None or made >= rollout.most else rollout.image


def next_move(
    row: DesiredHosts,
    intents: Iterable[Intent],
    has_loaded: Callable[[Intent], bool],
    lacks_room: Callable[[Intent], bool],
) -> Move:
    """The next step of the group's replacement. `intents`: the group's, those that ended lately included.

    `lacks_room` says of a host that is not created whether it has waited for long, and not because its kind fails.
    """
    rollout, known = row.rollout, list(intents)
    if rollout is None and (not row.image or _has_failed(row, known)):
        return Move(give_up=bool(row.image))
    if not row.count:
        return Move()
    surge = row.surge if rollout is None else rollout.surge
    there = [one for one in known if one.state is not IntentState.ENDED]
    held = [one for one in there if one.wanted and one.reclaim_at is None]
    if rollout is not None and (move := _hold(row, rollout, held, has_loaded)) is not None:
        return move
    if any(not one.wanted and is_outdated(one, row) for one in there):
        return Move(0 if surge else -1)
    old = [one for one in held if is_outdated(one, row)]
    if not old:
        return Move()
    fresh = [one for one in held if one not in old]
    coming = [one for one in fresh if not has_loaded(one)]
    if len(held) >= row.count + surge and (not coming or _gives_room(rollout, coming, lacks_room)):
        return Move(surge - 1, min(old, key=lambda one: (has_loaded(one), one.requested_at, one.name)))
    return Move(int(surge))


def _hold(
    row: DesiredHosts,
    rollout: ImageRollout,
    held: Sequence[Intent],
    has_loaded: Callable[[Intent], bool],
) -> Move | None:
    """The step of a rollout that needs no host replaced now; None = one has to be."""
    if rollout.most == 0:  # where there are more than desired, those of its image are given up first
        loaded = sum(has_loaded(one) for one in held if not is_outdated(one, row))
        return Move() if loaded >= row.count < len(held) else None
    if sum(_is_made_from(one, rollout.image) for one in held) < rollout.most:
        return None
    called = sum(one.state is not IntentState.WRITTEN for one in held)
    return Move(int(rollout.surge and called > row.count))


def _gives_room(
    rollout: ImageRollout | None, coming: Sequence[Intent], lacks_room: Callable[[Intent], bool]
) -> bool:
    """Whether an old host leaves before its successor comes, since there is no room for that beside it."""
    return rollout is not None and rollout.surge and rollout.gives_room and all(map(lacks_room, coming))


def _is_made_from(intent: Intent, image: str) -> bool:
    """Whether a host that is wanted was asked to be made from an image."""
    return (
        intent.wanted and intent.image == image and intent.state in (IntentState.CALLED, IntentState.EXISTS)
    )


def _has_failed(row: DesiredHosts, intents: Iterable[Intent]) -> bool:
    """Whether the group's image failed since it was set, and never gave a host that is fit to serve."""
    new = [one for one in intents if one.image == row.image]
    since = [one for one in new if one.failed_at and (row.image_at is None or one.failed_at >= row.image_at)]
    return sum(one.failures for one in since) >= GIVE_UP_AFTER and not any(one.first_fit_at for one in new)
