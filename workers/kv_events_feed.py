"""What the agent tells the scheduler of its engines' prefix caches: coalesced, complete after every reconnection."""

import asyncio

from workers.kv_events_map import BlockMap
from workers.kv_events_wire import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from workers.wire import Heartbeat, KvDelta

MAX_HASHES = 200_000
"""Hashes in one delta: at most 1.8 MB, under the cap of a frame."""


class KvFeed:
    """One replica's prefix cache as the scheduler should see it. Pure; memory is bounded by the block map's."""

    def __init__(self, replica_id: str, changed: asyncio.Event) -> None:
        self.replica_id = replica_id
        self.boot_id = ""
        self.live = False
        """Whether this boot's events have been followed from a known point on."""
        self.told = False
        """Whether the scheduler, on this connection, has heard that this boot is matched by `tokens`: deltas that it
        cannot place are lost."""
        self.blocks = BlockMap()
        self._changed = changed
        self._seq = 0
        self._cleared = True
        self._pending: dict[int, bool] = {}
        """What has changed since the last delta: stored or removed, the later word counts."""

    def begin(self, boot_id: str) -> None:
        """Another incarnation of the engine: nothing is cached, nothing is known."""
        self.boot_id = boot_id
        self.live = self.told = False
        self._seq = 0
        self.blocks = BlockMap()
        self.resend()

    def apply(self, events: list[KvEvent]) -> None:
        """Take the events of one message, in order."""
        for event in events:
            match event:
                case BlockStored():
                    stored, dropped = self.blocks.store(event)
                    self._pending.update(dict.fromkeys(stored, True))
                    self._removed(dropped)
                case BlockRemoved():
                    self._removed(self.blocks.remove(event))
                case AllBlocksCleared():
                    self.forget()
        if len(self._pending) > 2 * self.blocks.max_blocks:
            self.resend()  # the scheduler has long been away
        if self._pending:
            self._changed.set()

    def _removed(self, hashes: list[int]) -> None:
        if self._cleared:  # nothing that the scheduler would still know
            for own in hashes:
                self._pending.pop(own, None)
        else:
            self._pending.update(dict.fromkeys(hashes, False))

    def forget(self) -> None:
        """Events were lost, or the cache was reset: begin with nothing."""
        self.blocks.clear()
        self.resend()

    def resend(self) -> None:
        """Let the next deltas say everything."""
        self._cleared = True
        self._pending = dict.fromkeys(self.blocks.own_hashes(), True)
        self._changed.set()

    def take(self) -> list[KvDelta]:
        """The deltas that bring the scheduler up to date; empty while it does not know the boot."""
        if not self.told or not self.live or not (self._pending or self._cleared):
            return []
        hashes, self._pending = list(self._pending.items()), {}
        deltas = []
        for start in range(0, max(1, len(hashes)), MAX_HASHES):
            part = hashes[start : start + MAX_HASHES]
            self._seq += 1
            stored = [own for own, is_stored in part if is_stored]
            removed = [own for own, is_stored in part if not is_stored]
            deltas.append(
                KvDelta(self.replica_id, self.boot_id, self._seq, stored, removed, cleared=self._cleared)
            )
            self._cleared = False
        return deltas


class KvOutbox:
    """The feeds of all replicas of a host, as the scheduler's link drains them."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self._feeds: dict[str, KvFeed] = {}

    def feed(self, replica_id: str) -> KvFeed:
        """The feed of a replica, made on first use."""
        return self._feeds.setdefault(replica_id, KvFeed(replica_id, self.changed))

    def connected(self) -> None:
        """A new connection to a scheduler that may know nothing."""
        for feed in self._feeds.values():
            feed.told = False
            feed.resend()

    def told(self, beat: Heartbeat) -> None:
        """A heartbeat is on its way: what follows it on the connection may be about its boots.

        The scheduler begins with nothing whenever a replica comes to be matched by `tokens`.
        """
        for status in beat.replicas:
            feed = self._feeds.get(status.replica_id)
            if feed is None or feed.boot_id != status.boot_id:
                continue
            exact = status.prefix_kind == "tokens"
            if exact and not feed.told:
                feed.resend()
            feed.told = exact

    def resend(self, replica_id: str) -> None:
        """The scheduler has missed something: say again all that a replica's cache holds."""
        feed = self._feeds.get(replica_id)
        if feed is not None:
            feed.resend()

    def take(self) -> list[KvDelta]:
        """Everything there is to say now."""
        self.changed.clear()
        return [delta for feed in self._feeds.values() for delta in feed.take()]
