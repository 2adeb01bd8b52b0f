"""Follows one engine's KV events over ZMQ: in order, gaps replayed, what cannot be replayed forgotten."""

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
REPLAY_S = 5.0
"""A running engine that has sent nothing of a replay for so long is not going to."""
AUDIT_S = 5.0
"""How often an engine that says nothing is asked whether it has said anything: its last message may have been lost."""
RETRY_S = 1.0
"""From the failure of a socket to the next attempt with new ones."""
MAX_HELD = 10_000
"""Live messages kept while a replay runs, as many as vLLM keeps for replay."""

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


class KvFollower:
    """Keeps a replica's feed up to date through its engine's restarts.

    Begins every boot by asking for all that the engine has kept (10,000 messages), so nothing that it published
    before we listened is missed, whether it has just started or was adopted.
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
        """`block_tokens` is the size of blocks that prompts will be cut into; 0 = not known yet."""
        self._endpoints = endpoints
        self._feed = feed
        self._block_tokens = block_tokens
        self._boot_id = boot_id
        self._now = now
        self._context = context

    async def run(self) -> None:
        """Follow until cancelled; where a socket fails, what is known is forgotten and read again with new ones."""
        while True:
            boot_id = self._boot_id()
            if not boot_id:
                await asyncio.sleep(POLL_S)
                continue
            self._feed.begin(boot_id)
            while self._boot_id() == boot_id:
                try:
                    await self._follow(boot_id)
                except zmq.ZMQError as error:
                    self._not_live(error)
                    await asyncio.sleep(RETRY_S)

    async def _follow(self, boot_id: str) -> None:
        """One boot, with one pair of sockets."""
        stream = _Stream(self._endpoints, self._feed, self._now, self._context)
        try:
            stream.begin()
            while self._boot_id() == boot_id:
                stream.expect(self._block_tokens())
                await stream.step(POLL_S)
        finally:
            stream.close()

    def _not_live(self, error: zmq.ZMQError) -> None:
        """Nobody hears the engine now: heartbeats must not say that its events are followed."""
        log.warning(
            "replica %s: its KV events cannot be followed, trying again in %s s: %s",
            self._feed.replica_id,
            RETRY_S,
            error,
        )
        _FAILURES.labels(self._feed.replica_id).inc()
        self._feed.live = False
        self._feed.forget()


class _Stream:
    """One boot's messages."""

    def __init__(
        self, endpoints: KvEndpoints, feed: KvFeed, now: Callable[[], float], context: "zmq.asyncio.Context"
    ) -> None:
        self._endpoints = endpoints
        self._feed = feed
        self._now = now
        self._context = context
        self._next = 0
        """The sequence number that is due."""
        self._taken_at = 0.0
        """By the engine's clock: when it made the message before that."""
        self._held: dict[int, bytes] = {}
        """Live messages that came while a replay runs."""
        self._heard_at = now()
        self._asked_at: float | None = None
        """Since when a replay runs."""
        self._replay: zmq.asyncio.Socket | None = None
        self._live = context.socket(zmq.SUB)
        self._live.setsockopt(zmq.RCVHWM, MAX_HELD)
        self._live.subscribe(b"")

    def begin(self) -> None:
        """Listen, and ask for all that the engine has kept. Raises ZMQError where the sockets cannot be had."""
        self._live.connect(self._endpoints.events)
        self._ask()

    def close(self) -> None:
        """Let go of both sockets."""
        self._live.close(linger=0)
        if self._replay is not None:
            self._replay.close(linger=0)

    def expect(self, block_tokens: int) -> None:
        """The size of blocks to follow. Where the engine's first event had another, all of them are read again."""
        blocks = self._feed.blocks
        if not block_tokens or block_tokens == blocks.block_tokens:
            return
        odd, blocks.block_tokens, blocks.fitting = blocks.block_tokens, block_tokens, 0
        if odd:
            self._begin_anew(f"blocks have {block_tokens} tokens, those of the first event had {odd}")

    async def step(self, wait_s: float) -> None:
        """Take the messages that are here or come within `wait_s`."""
        poller = zmq.asyncio.Poller()
        poller.register(self._live, zmq.POLLIN)
        if self._replay is not None:
            poller.register(self._replay, zmq.POLLIN)
        for socket, _ in await poller.poll(wait_s * 1000):
            if socket.closed:  # what the other one said has made us ask anew
                continue
            frames = await socket.recv_multipart()
            if socket is self._replay:
                self._replayed(frames[1:])  # DEALER: an empty frame comes first
            else:
                self._published(frames)
        self._look_after_replay()

    def _published(self, frames: list[bytes]) -> None:
        message = self._parse(frames)
        if message is None:
            return
        seq, payload = message
        self._heard_at = self._now()
        if seq < self._next:
            # Most have been replayed before; an engine that counts from the start again makes younger ones.
            if sent_at(payload) > self._taken_at:
                self._begin_anew(f"message {seq} is younger than message {self._next - 1}")
            return
        if self._asked_at is None and seq == self._next:
            self._take(seq, payload)
            return
        if len(self._held) < MAX_HELD:
            self._held[seq] = payload
        if self._asked_at is None:
            _REPLAYS.labels(self._feed.replica_id).inc()
            self._ask()

    def _replayed(self, frames: list[bytes]) -> None:
        message = self._parse(frames)
        if message is None:
            return
        seq, payload = message
        if seq == END_OF_REPLAY:
            self._end_replay()
        elif seq >= self._next:
            if self._asked_at is not None:
                self._asked_at = self._now()  # it answers, only not all at once
            self._take(seq, payload)

    def _parse(self, frames: list[bytes]) -> tuple[int, bytes] | None:
        if len(frames) != 3 or len(frames[1]) != 8:
            _MALFORMED.labels(self._feed.replica_id).inc()
            return None
        return int.from_bytes(frames[1], "big", signed=True), frames[2]

    def _take(self, seq: int, payload: bytes) -> None:
        """Apply the message with a sequence number that is due or past due; what lies between is lost."""
        if seq > self._next:
            self._lose(f"messages {self._next} to {seq - 1} are gone")
        self._next, self._taken_at = seq + 1, max(self._taken_at, sent_at(payload))
        _MESSAGES.labels(self._feed.replica_id).inc()
        try:
            events, unread = decode_batch(payload)
        except msgspec.DecodeError:
            events, unread = [], 1
        if unread:
            _MALFORMED.labels(self._feed.replica_id).inc(unread)
        self._feed.apply(events)

    def _lose(self, why: str) -> None:
        if self._next or len(self._feed.blocks):
            log.warning("replica %s: KV events were lost (%s)", self._feed.replica_id, why)
        _LOST.labels(self._feed.replica_id).inc()
        self._feed.forget()

    def _begin_anew(self, why: str) -> None:
        """Nothing that was followed so far counts: forget it and take all that the engine has kept."""
        log.warning(
            "replica %s: its KV events are followed from the first again: %s", self._feed.replica_id, why
        )
        _RESTARTS.labels(self._feed.replica_id).inc()
        self._feed.forget()
        self._held.clear()
        self._next, self._taken_at = 0, 0.0
        self._ask()

    def _ask(self) -> None:
        """Ask for everything from the due message on; the request waits in ZMQ until the engine listens."""
        if self._replay is not None:
            self._replay.close(linger=0)
        self._replay = self._context.socket(zmq.DEALER)
        self._replay.setsockopt(zmq.RCVHWM, 0)
        self._replay.connect(self._endpoints.replay)
        self._replay.send_multipart([b"", self._next.to_bytes(8, "big")])
        self._asked_at = self._now()

    def _end_replay(self) -> None:
        """The engine has sent what it had; go on with what came meanwhile."""
        self._asked_at = None
        self._heard_at = self._now()
        held, self._held = sorted(self._held.items()), {}
        for seq, payload in held:
            if seq >= self._next:
                self._take(seq, payload)
        if not self._feed.live:
            self._feed.live = True
            self._feed.resend()

    def _look_after_replay(self) -> None:
        now = self._now()
        if self._asked_at is None:
            if now - self._heard_at >= AUDIT_S:
                self._ask()
        elif self._held and now - self._asked_at >= REPLAY_S:
            self._end_replay()
