"""Announcements of a client to the next scheduler: placements, queued requests and counters."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from scheduler.messages import Announce, AnnouncedPlacement, AnnouncedRequest, TenantCounter
from scheduler.wire import Placement, PlaceRequest

MAX_COUNTERS = 16_384
"""Counters that a client keeps, those updated last; they take a few megabytes."""
PLACEMENTS_PER_FRAME = 2048
"""Placements of one frame, of some 350 bytes each."""
ANNOUNCED_PART_BYTES = 1024 * 1024
"""Approximate size of one frame of an announcement."""
QUEUED_BYTES = 1024
"""Largest size of a queued request in a frame, without its blocks."""
HASH_BYTES = 9
"""Largest size of a block hash in a frame."""


def announced_placement(
    request: PlaceRequest,
    placement: Placement,
    *,
    produced: int,
    prefilled: bool,
    age_s: float,
    counted_by: str,
) -> AnnouncedPlacement:
    """A placement in the form of an announcement, `age_s` seconds after it was placed.

    `counted_by`: epoch of the scheduler that charged it last; empty = none.
    """
    return AnnouncedPlacement(
        placement.request_id,
        request.tenant_id,
        placement.model,
        placement.replica_id,
        placement.boot_id,
        request.prompt_tokens,
        placement.hit_tokens,
        request.output_tokens,
        produced,
        prefilled,
        age_s,
        request.tier,
        request.weight,
        counted_by,
        placement.rank,
    )


def announcements(
    held: list[AnnouncedPlacement], queued: list[AnnouncedRequest], counters: list[TenantCounter]
) -> Iterator[Announce]:
    """The frames of an announcement: placements, then counters, then queued requests, oldest first."""
    last = max(0, len(held) - 1) // PLACEMENTS_PER_FRAME
    for part in range(last + 1):
        begin = part * PLACEMENTS_PER_FRAME
        placements = held[begin : begin + PLACEMENTS_PER_FRAME]
        yield Announce(placements, [], more=part > 0, placements_follow=part < last)
    if counters:
        yield Announce([], [], counters, more=True)
    requests: list[AnnouncedRequest] = []
    size = 0
    for each in queued:
        requests.append(each)
        size += QUEUED_BYTES + HASH_BYTES * len(each.request.blocks)
        if size >= ANNOUNCED_PART_BYTES:
            yield Announce([], requests, more=True)
            requests, size = [], 0
    if requests:
        yield Announce([], requests, more=True)


class CounterCache:
    """Tenants' counters as received from schedulers; the least recently updated are dropped first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._counters: OrderedDict[tuple[str, str, str], tuple[str, float]] = OrderedDict()

    def update(self, epoch: str, counters: Sequence[TenantCounter]) -> None:
        """Store the counters of the scheduler `epoch`."""
        for counter in counters:
            key = (counter.model, counter.tier, counter.tenant_id)
            self._counters[key] = (epoch, counter.service)
            self._counters.move_to_end(key)
        while len(self._counters) > self._limit:
            self._counters.popitem(last=False)

    def not_from(self, epoch: str) -> list[TenantCounter]:
        """The counters that were last received from another scheduler than `epoch`."""
        return [
            TenantCounter(tenant_id, model, service, tier)
            for (model, tier, tenant_id), (source, service) in self._counters.items()
            if source != epoch
        ]
