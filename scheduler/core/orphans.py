"""Placements of clients whose connection was lost, kept in case the client returns.

A client that was frozen announces its placements again. Their replicas kept running them, and their tenants have been
charged for the progress that was reported.
"""

from collections import OrderedDict

from scheduler.core.placement import ActivePlacement

PlacementKey = tuple[str, str, str]
"""Client, request id and replica id. A request may briefly have two placements, but never two on one replica."""
MAX_ORPHANS = 4096
"""Orphaned placements that are kept; with prompts of the largest size they take about 130 MB."""


class OrphanedPlacements:
    """A bounded map of orphaned placements; the oldest are dropped first."""

    def __init__(self, limit: int = MAX_ORPHANS) -> None:
        self.limit = limit
        self._entries: OrderedDict[PlacementKey, tuple[float, ActivePlacement]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, key: PlacementKey, entry: ActivePlacement, now: float) -> None:
        """Keep a placement that was closed because its client was lost."""
        self._entries[key] = (now, entry)
        self._entries.move_to_end(key)
        if len(self._entries) > self.limit:
            self._entries.popitem(last=False)

    def claim(self, key: PlacementKey, boot_id: str, model: str) -> ActivePlacement | None:
        """Remove and return a placement that its client announces again; None when it is unknown or of another
        incarnation."""
        _, entry = self._entries.pop(key, (0.0, None))
        same = entry is not None and (entry.boot_id, entry.model) == (boot_id, model)
        return entry if same else None

    def expire(self, before: float) -> None:
        """Drop the placements that were orphaned before a time (monotonic seconds)."""
        while self._entries and next(iter(self._entries.values()))[0] < before:
            self._entries.popitem(last=False)
