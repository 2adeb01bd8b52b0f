"""The changes of prefix caches that the agent sends to the scheduler: merged, and complete after a reconnection."""

import asyncio

from workers.kv_events_map import BlockMap
from workers.kv_events_wire import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from workers.ranks import target_names
from workers.wire import Heartbeat, KvDelta

MAX_HASHES = 200_000
"""Hashes in one delta: at most 1.8 MB, below the limit of a frame."""


class KvFeed:
    """One replica's prefix cache and its changes not sent yet. Pure; memory is bounded as the block map's is."""

    def __init__(self, replica_id: str, changed: asyncio.Event) -> None:
        self.replica_id = replica_id
        self.boot_id = ""
        self.live = False
        """Whether this boot's events have been applied without a gap."""
        self.announced = False
        """Whether a heartbeat on this connection has reported this boot as matched by `tokens`. The scheduler drops
        deltas that arrive before it."""
        self.blocks = BlockMap()
        self._changed = changed
        self._seq = 0
        self._cleared = True
        self._pending: dict[int, bool] = {}
        """Changes since the last delta, by hash: True = stored, False = removed."""

    def begin(self, boot_id: str) -> None:
        """Start over with an empty cache for a new incarnation of the engine."""
        self.boot_id = boot_id
        self.live = self.announced = False
        self._seq = 0
        self.blocks = BlockMap()
        self.resend()

    def apply(self, events: list[KvEvent]) -> None:
        """Apply the events of one message in order."""
        for event in events:
            match event:
                case BlockStored():
                    stored, dropped = self.blocks.store(event)
                    self._pending.update(dict.fromkeys(stored, True))
                    self._remove(dropped)
                case BlockRemoved():
                    self._remove(self.blocks.remove(event))
                case AllBlocksCleared():
                    self.clear()
        if len(self._pending) > 2 * self.blocks.max_blocks:
            self.resend()  # no connection for long: the whole content is smaller than the changes
        if self._pending:
            self._changed.set()

    def _remove(self, hashes: list[int]) -> None:
        if self._cleared:  # the scheduler does not know these hashes
            for block_hash in hashes:
                self._pending.pop(block_hash, None)
        else:
            self._pending.update(dict.fromkeys(hashes, False))

    def clear(self) -> None:
        """Clear the content, after events were lost or the cache was reset."""
        self.blocks.clear()
        self.resend()

    def resend(self) -> None:
        """Send the whole content with the next deltas."""
        self._cleared = True
        self._pending = dict.fromkeys(self.blocks.block_hashes(), True)
        self._changed.set()

    def take(self) -> list[KvDelta]:
        """The deltas that bring the scheduler up to date; empty while this boot is not announced or not live."""
        if not self.announced or not self.live or not (self._pending or self._cleared):
            return []
        hashes, self._pending = list(self._pending.items()), {}
        deltas = []
        for start in range(0, max(1, len(hashes)), MAX_HASHES):
            part = hashes[start : start + MAX_HASHES]
            self._seq += 1
            stored = [block_hash for block_hash, is_stored in part if is_stored]
            removed = [block_hash for block_hash, is_stored in part if not is_stored]
            deltas.append(
                KvDelta(self.replica_id, self.boot_id, self._seq, stored, removed, cleared=self._cleared)
            )
            self._cleared = False
        return deltas


class KvOutbox:
    """The feeds of all replicas of a host, or of their ranks, which the connection to the scheduler drains."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self._feeds: dict[str, KvFeed] = {}

    def feed(self, replica_id: str) -> KvFeed:
        """The feed of a replica, created at the first call."""
        return self._feeds.setdefault(replica_id, KvFeed(replica_id, self.changed))

    def on_connected(self) -> None:
        """Prepare all feeds for a new connection, whose scheduler may know nothing."""
        for feed in self._feeds.values():
            feed.announced = False
            feed.resend()

    def on_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Note a heartbeat that was just sent: deltas after it may be about its boots.

        The scheduler starts with an empty cache whenever a replica becomes matched by `tokens`.
        """
        for status in heartbeat.replicas:
            for name in target_names(status.replica_id, len(status.ranks)):
                feed = self._feeds.get(name)
                if feed is None or feed.boot_id != status.boot_id:
                    continue
                exact = status.prefix_kind == "tokens"
                if exact and not feed.announced:
                    feed.resend()
                feed.announced = exact

    def resend(self, replica_id: str) -> None:
        """Send the whole content of a replica's cache again."""
        feed = self._feeds.get(replica_id)
        if feed is not None:
            feed.resend()

    def take(self) -> list[KvDelta]:
        """All deltas to send now."""
        self.changed.clear()
        return [delta for feed in self._feeds.values() for delta in feed.take()]
