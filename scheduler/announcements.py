"""What a client tells the next scheduler: what it holds and waits for, and what earlier ones had counted."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from scheduler.messages import Announce, AnnouncedPlacement, AnnouncedRequest, TenantCounter
from scheduler.wire import Placement, PlaceRequest

MAX_COUNTERS = 16_384
"""Tenants' counters kept for the next scheduler, those heard of last; a few megabytes."""
ANNOUNCED_PART_BYTES = 1024 * 1024
"""About so much is announced in one frame."""
QUEUED_BYTES = 1024
"""What a queued request takes there at most without its blocks ..."""
HASH_BYTES = 9
"""... and each of them."""


def announced_placement(
    request: PlaceRequest,
    placement: Placement,
    *,
    produced: int,
    prefilled: bool,
    age_s: float,
    counted_by: str,
) -> AnnouncedPlacement:
    """A placement as its client announces it, `age_s` seconds old.

    `counted_by`: epoch of the scheduler that last took it into its counters, empty where none has.
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
    )


def announcements(
    held: list[AnnouncedPlacement], queued: list[AnnouncedRequest], counters: list[TenantCounter]
) -> Iterator[Announce]:
    """An announcement in frames of bounded size: what is held, then the counters, then what waits, oldest first."""
    yield Announce(held, [])
    if counters:
        yield Announce([], [], counters, more=True)
    part: list[AnnouncedRequest] = []
    size = 0
    for each in queued:
        part.append(each)
        size += QUEUED_BYTES + HASH_BYTES * len(each.request.blocks)
        if size >= ANNOUNCED_PART_BYTES:
            yield Announce([], part, more=True)
            part, size = [], 0
    if part:
        yield Announce([], part, more=True)


class CounterCache:
    """What schedulers said of tenants' counters: bounded, those heard of longest ago are forgotten first."""

    def __init__(self, limit: int) -> None:
        self._most = limit
        self._counters: OrderedDict[tuple[str, str, str], tuple[str, float]] = OrderedDict()

    def update(self, epoch: str, counters: Sequence[TenantCounter]) -> None:
        """The newest word replaces the older."""
        for counter in counters:
            key = (counter.model, counter.tier, counter.tenant_id)
            self._counters[key] = (epoch, counter.service)
            self._counters.move_to_end(key)
        while len(self._counters) > self._most:
            self._counters.popitem(last=False)

    def not_from(self, epoch: str) -> list[TenantCounter]:
        """Those that were not heard from the scheduler `epoch` itself."""
        return [
            TenantCounter(tenant_id, model, service, tier)
            for (model, tier, tenant_id), (source, service) in self._counters.items()
            if source != epoch
        ]
