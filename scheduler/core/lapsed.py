"""Placements of clients whose connection was lost for too long: what they were charged, should they come back.

A client that was frozen announces again what it held. Its replica kept running it, and its tenant has paid for what was
seen of it by then.
"""

from collections import OrderedDict

from scheduler.core.placements import Open

PlacementKey = tuple[str, str, str]
"""Client, request id, replica id: a request may briefly have two placements, never two on one replica."""
MAX_LAPSED = 4096
"""Remembered at most, the newest: with prompts of the largest size some 130 MB."""


class Lapsed:
    """Bounded, oldest first out."""

    def __init__(self, most: int = MAX_LAPSED) -> None:
        self.most = most
        self._entries: OrderedDict[PlacementKey, tuple[float, Open]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, key: PlacementKey, entry: Open, now: float) -> None:
        """A placement was closed because its client seemed dead."""
        self._entries[key] = (now, entry)
        self._entries.move_to_end(key)
        if len(self._entries) > self.most:
            self._entries.popitem(last=False)

    def claim(self, key: PlacementKey, boot_id: str, model: str) -> Open | None:
        """Its client announces it again: what was known of it; None where that is nothing, or another incarnation's."""
        _, entry = self._entries.pop(key, (0.0, None))
        same = entry is not None and (entry.boot_id, entry.model) == (boot_id, model)
        return entry if same else None

    def forget(self, before: float) -> None:
        """Those that lapsed before a time will not come back."""
        while self._entries and next(iter(self._entries.values()))[0] < before:
            self._entries.popitem(last=False)
