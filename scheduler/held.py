"""What a client keeps of its requests: those that wait for a replica, and those that have one."""

import asyncio
import sys
from dataclasses import dataclass

from scheduler.announcements import announced_placement
from scheduler.messages import AnnouncedPlacement
from scheduler.wire import Placement, PlaceRequest
from workers.ranks import rank_id


@dataclass(slots=True)
class Waiting:
    """A request that waits since `since`, in monotonic seconds."""

    request: PlaceRequest
    future: "asyncio.Future[Placement]"
    since: float


@dataclass(slots=True)
class HeldPlacement:
    """A placement that is not released, made at `since`, in monotonic seconds."""

    placement: Placement
    request: PlaceRequest
    since: float
    produced: int = 0
    prefilled: bool = False
    counted_by: str = ""
    """Epoch of the scheduler that charged the placement last."""

    def announced(self, now: float) -> AnnouncedPlacement:
        """The placement as it is announced to a scheduler that may not know it."""
        return announced_placement(
            self.request,
            self.placement,
            produced=self.produced,
            prefilled=self.prefilled,
            age_s=now - self.since,
            counted_by=self.counted_by,
        )


def share_texts(placement: Placement, request: PlaceRequest) -> None:
    """Replace texts that every placement on a replica repeats, so that an open stream keeps none of its own."""
    placement.request_id, placement.model = request.request_id, sys.intern(placement.model)
    placement.epoch, placement.replica_id = sys.intern(placement.epoch), sys.intern(placement.replica_id)
    placement.url, placement.boot_id = sys.intern(placement.url), sys.intern(placement.boot_id)


def counted_on(placement: Placement) -> list[str]:
    """The names under which a client counts a placement: its replica, and its rank where it has one."""
    name = placement.replica_id
    return [name] if placement.rank is None else [name, rank_id(name, placement.rank)]
