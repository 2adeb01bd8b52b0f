"""Subscribes to one engine's KV events over ZMQ: applies them in order, replays gaps, and starts over after a loss."""

import asyncio
import logging
from collections.abc import Callable

import msgspec
import zmq
import zmq.asyncio
from prometheus_client import Counter

from workers.kv_endpoints import KvEndpoints
from workers.kv_events_feed import KvFeed
from workers.kv_events_wire import END_OF_REPLAY, decode_batch, sent_at

log = logging.getLogger(__name__)

POLL_S = 0.1
"""Seconds of one wait for messages."""
REPLAY_TIMEOUT_S = 5.0
"""Seconds without a replayed message after which a replay counts as ended."""
IDLE_CHECK_S = 5.0
"""Seconds without a message after which a replay is requested, because the last message may have been lost."""
RETRY_S = 1.0
"""Seconds from the failure of a socket to the next attempt with new ones."""
MAX_BUFFERED = 10_000
"""Live messages buffered during a replay, as many as vLLM keeps for replay."""

_MESSAGES = Counter("penstock_agent_kv_messages", "Messages of KV events that were taken.", ["replica"])
_MALFORMED = Counter("penstock_agent_kv_malformed", "KV events that could not be read.", ["replica"])
_REPLAYS = Counter("penstock_agent_kv_replays", "Gaps that an engine was asked to replay.", ["replica"])
_RESTARTS = Counter(
    "penstock_agent_kv_restarts", "Times an engine was followed anew from its first message.", ["replica"]
)
_FAILURES = Counter(
    "penstock_agent_kv_failures", "Times a socket failed: all was forgotten and read again.", ["replica"]
)
_LOST = Counter("penstock_agent_kv_lost", "Gaps that could not be replayed: all was forgotten.", ["replica"])


class KvSubscriber:
    """Keeps a replica's feed up to date across restarts of its engine.

    Each boot begins with a replay of all messages that the engine keeps (10,000), so events from before the
    subscription are applied too, of a new engine and of an adopted one.
    """

    def __init__(
        self,
        endpoints: KvEndpoints,
        feed: KvFeed,
        *,
        boot_id: Callable[[], str],
        now: Callable[[], float],
        context: "zmq.asyncio.Context",
        block_tokens: Callable[[], int] = lambda: 0,
    ) -> None:
        """`block_tokens` is the size of the blocks that prompts are split into; 0 = not known yet."""
        self._endpoints = endpoints
        self._feed = feed
        self._block_tokens = block_tokens
        self._boot_id = boot_id
        self._now = now
        self._context = context

    async def run(self) -> None:
        """Receive events until cancelled; after a failed socket, clear the feed and start over with new sockets."""
        while True:
            boot_id = self._boot_id()
            if not boot_id:
                await asyncio.sleep(POLL_S)
                continue
            self._feed.begin(boot_id)
            while self._boot_id() == boot_id:
                try:
                    await self._follow_boot(boot_id)
                except zmq.ZMQError as error:
                    self._on_socket_error(error)
                    await asyncio.sleep(RETRY_S)

    async def _follow_boot(self, boot_id: str) -> None:
        """Receive the events of one boot with one pair of sockets."""
        stream = _Stream(self._endpoints, self._feed, self._now, self._context)
        try:
            stream.begin()
            while self._boot_id() == boot_id:
                stream.set_block_size(self._block_tokens())
                await stream.step(POLL_S)
        finally:
            stream.close()

    def _on_socket_error(self, error: zmq.ZMQError) -> None:
        """Mark the feed as not live, so that heartbeats do not report the replica as matched by tokens."""
        log.warning(
            "replica %s: its KV events cannot be followed, trying again in %s s: %s",
            self._feed.replica_id,
            RETRY_S,
            error,
        )
        _FAILURES.labels(self._feed.replica_id).inc()
        self._feed.live = False
        self._feed.clear()


class _Stream:
    """The messages of one boot."""

    def __init__(
        self, endpoints: KvEndpoints, feed: KvFeed, now: Callable[[], float], context: "zmq.asyncio.Context"
    ) -> None:
        self._endpoints = endpoints
        self._feed = feed
        self._now = now
        self._context = context
        self._next = 0
        """The next expected sequence number."""
        self._last_sent_at = 0.0
        """Timestamp of the last applied message, by the engine's clock."""
        self._buffered: dict[int, bytes] = {}
        """Live messages that arrived during a replay, by sequence number."""
        self._received_at = now()
        self._replay_at: float | None = None
        """Instant of the replay's request or of its last message; None = no replay runs."""
        self._replay: zmq.asyncio.Socket | None = None
        self._live = context.socket(zmq.SUB)
        self._live.setsockopt(zmq.RCVHWM, MAX_BUFFERED)
        self._live.subscribe(b"")

    def begin(self) -> None:
        """Connect, and request all messages that the engine keeps. Raises ZMQError when a socket fails."""
        self._live.connect(self._endpoints.events)
        self._request_replay()

    def close(self) -> None:
        """Close both sockets."""
        self._live.close(linger=0)
        if self._replay is not None:
            self._replay.close(linger=0)

    def set_block_size(self, block_tokens: int) -> None:
        """Set the size of blocks to apply; if the engine's first event had another size, start over."""
        blocks = self._feed.blocks
        if not block_tokens or block_tokens == blocks.block_tokens:
            return
        other, blocks.block_tokens, blocks.matching = blocks.block_tokens, block_tokens, 0
        if other:
            self._restart(f"blocks have {block_tokens} tokens, those of the first event had {other}")

    async def step(self, wait_s: float) -> None:
        """Handle the messages that have arrived or arrive within `wait_s` seconds."""
        poller = zmq.asyncio.Poller()
        poller.register(self._live, zmq.POLLIN)
        if self._replay is not None:
            poller.register(self._replay, zmq.POLLIN)
        for socket, _ in await poller.poll(wait_s * 1000):
            if socket.closed:  # handling the other socket's message has replaced it
                continue
            frames = await socket.recv_multipart()
            if socket is self._replay:
                self._on_replayed(frames[1:])  # a DEALER receives an empty frame first
            else:
                self._on_published(frames)
        self._check_replay()

    def _on_published(self, frames: list[bytes]) -> None:
        message = self._parse(frames)
        if message is None:
            return
        seq, payload = message
        self._received_at = self._now()
        if seq < self._next:
            # Usually the message was replayed before. A newer timestamp means that the engine counts from 0 again.
            if sent_at(payload) > self._last_sent_at:
                self._restart(f"message {seq} is younger than message {self._next - 1}")
            return
        if self._replay_at is None and seq == self._next:
            self._apply(seq, payload)
            return
        if len(self._buffered) < MAX_BUFFERED:
            self._buffered[seq] = payload
        if self._replay_at is None:
            _REPLAYS.labels(self._feed.replica_id).inc()
            self._request_replay()

    def _on_replayed(self, frames: list[bytes]) -> None:
        message = self._parse(frames)
        if message is None:
            return
        seq, payload = message
        if seq == END_OF_REPLAY:
            self._end_replay()
        elif seq >= self._next:
            if self._replay_at is not None:
                self._replay_at = self._now()  # the replay makes progress
            self._apply(seq, payload)

    def _parse(self, frames: list[bytes]) -> tuple[int, bytes] | None:
        if len(frames) != 3 or len(frames[1]) != 8:
            _MALFORMED.labels(self._feed.replica_id).inc()
            return None
        return int.from_bytes(frames[1], "big", signed=True), frames[2]

    def _apply(self, seq: int, payload: bytes) -> None:
        """Apply a message. If its sequence number is above the expected one, those between are lost: clear the feed."""
        if seq > self._next:
            self._drop_all(f"messages {self._next} to {seq - 1} are gone")
        self._next, self._last_sent_at = seq + 1, max(self._last_sent_at, sent_at(payload))
        _MESSAGES.labels(self._feed.replica_id).inc()
        try:
            events, unread = decode_batch(payload)
        except msgspec.DecodeError:
            events, unread = [], 1
        if unread:
            _MALFORMED.labels(self._feed.replica_id).inc(unread)
        self._feed.apply(events)

    def _drop_all(self, why: str) -> None:
        if self._next or len(self._feed.blocks):
            log.warning("replica %s: KV events were lost (%s)", self._feed.replica_id, why)
        _LOST.labels(self._feed.replica_id).inc()
        self._feed.clear()

    def _restart(self, why: str) -> None:
        """Clear the feed and request all messages that the engine keeps."""
        log.warning(
            "replica %s: its KV events are followed from the first again: %s", self._feed.replica_id, why
        )
        _RESTARTS.labels(self._feed.replica_id).inc()
        self._feed.clear()
        self._buffered.clear()
        self._next, self._last_sent_at = 0, 0.0
        self._request_replay()

    def _request_replay(self) -> None:
        """Request the messages from the next expected one on; ZMQ queues the request until the engine connects."""
        if self._replay is not None:
            self._replay.close(linger=0)
        self._replay = self._context.socket(zmq.DEALER)
        self._replay.setsockopt(zmq.RCVHWM, 0)
        self._replay.connect(self._endpoints.replay)
        self._replay.send_multipart([b"", self._next.to_bytes(8, "big")])
        self._replay_at = self._now()

    def _end_replay(self) -> None:
        """Apply the buffered messages and mark the feed as live."""
        self._replay_at = None
        self._received_at = self._now()
        buffered, self._buffered = sorted(self._buffered.items()), {}
        for seq, payload in buffered:
            if seq >= self._next:
                self._apply(seq, payload)
        if not self._feed.live:
            self._feed.live = True
            self._feed.resend()

    def _check_replay(self) -> None:
        now = self._now()
        if self._replay_at is None:
            if now - self._received_at >= IDLE_CHECK_S:
                self._request_replay()
        elif self._buffered and now - self._replay_at >= REPLAY_TIMEOUT_S:
            self._end_replay()
