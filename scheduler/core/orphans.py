"""Placements of clients whose connection was lost for too long: what they were charged, should they come back.

A client that was frozen announces again what it held. Its replica kept running it, and its tenant has paid for what was
seen of it by then.
"""

from collections import OrderedDict

from scheduler.core.placement import ActivePlacement

PlacementKey = tuple[str, str, str]
"""Client, request id, replica id: a request may briefly have two placements, never two on one replica."""
MAX_ORPHANS = 4096
"""Remembered at most, the newest: with prompts of the largest size some 130 MB."""


class OrphanedPlacements:
    """Bounded, oldest first out."""

    def __init__(self, limit: int = MAX_ORPHANS) -> None:
        self.limit = limit
        self._entries: OrderedDict[PlacementKey, tuple[float, ActivePlacement]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, key: PlacementKey, entry: ActivePlacement, now: float) -> None:
        """A placement was closed because its client seemed dead."""
        self._entries[key] = (now, entry)
        self._entries.move_to_end(key)
        if len(self._entries) > self.limit:
            self._entries.popitem(last=False)

    def claim(self, key: PlacementKey, boot_id: str, model: str) -> ActivePlacement | None:
        """Its client announces it again: what was known of it; None where that is nothing, or another incarnation's."""
        _, entry = self._entries.pop(key, (0.0, None))
        same = entry is not None and (entry.boot_id, entry.model) == (boot_id, model)
        return entry if same else None

    def expire(self, before: float) -> None:
        """Those that lapsed before a time will not come back."""
        while self._entries and next(iter(self._entries.values()))[0] < before:
            self._entries.popitem(last=False)
