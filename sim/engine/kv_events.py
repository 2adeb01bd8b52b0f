"""KV-cache events of the simulated engine, in the wire format of vLLM's publisher.

A message has three frames: topic, 8-byte big-endian sequence number, msgpack of `[ts, [events], dp_rank]`. A
subscriber that missed messages sends `[b"", first sequence number]` from a DEALER to the replay socket. It
receives every message still in the buffer as `[b"", topic, sequence, payload]`, then one with sequence -1.
"""

import asyncio
from collections import deque
from collections.abc import Sequence as Several

import msgspec
import zmq
import zmq.asyncio

from sim.engine.model import CacheChange, Sequence
from sim.engine.text import BYTES_PER_TOKEN, token_ids
from workers.kv_endpoints import KvEndpoints
from workers.kv_events_wire import END_OF_REPLAY, BlockRemoved, BlockStored, KvEvent

KEPT_MESSAGES = 10_000
"""Number of messages kept for replay; the default of vLLM's `buffer_steps`."""
_MEDIUM = "GPU"
_END = END_OF_REPLAY.to_bytes(8, "big", signed=True)


class Stored(BlockStored, tag="BlockStored"):
    """`BlockStored` with the deprecated field that vLLM still sends."""

    lora_id: int | None = None


def cache_events(changes: Several[CacheChange], block_size: int) -> list[KvEvent]:
    """Return vLLM's events for changes of the cache, in order."""
    events: list[KvEvent] = []
    for change in changes:
        if change.sequence is None:
            events.append(BlockRemoved(block_hashes=list(change.hashes), medium=_MEDIUM, group_idx=0))
        else:
            events += _stored(change.sequence, change.hashes, block_size)
    return events


def _stored(sequence: Sequence, hashes: tuple[int, ...], block_size: int) -> list[KvEvent]:
    """Return one event for each run of adjacent new blocks; a block between two runs may have been cached before."""
    chain = sequence.hashes
    places = {value: place for place, value in enumerate(chain)}
    runs: list[list[int]] = []
    for place in (places[value] for value in hashes):
        if runs and runs[-1][-1] == place - 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    width = block_size * BYTES_PER_TOKEN
    events: list[KvEvent] = []
    for run in runs:
        first, last = run[0], run[-1]
        keys = [[sequence.salt] if place == 0 and sequence.salt else None for place in run]
        events.append(
            Stored(
                block_hashes=list(chain[first : last + 1]),
                parent_block_hash=chain[first - 1] if first else None,
                token_ids=token_ids(bytes(sequence.content[first * width : (last + 1) * width])),
                block_size=block_size,
                medium=_MEDIUM,
                extra_keys=keys if any(keys) else None,
                group_idx=0,
            )
        )
    return events


class KvPublisher:
    """PUB and ROUTER sockets with a bounded replay buffer. Both sockets bind for any address."""

    def __init__(self, endpoint: str, replay_endpoint: str, *, topic: str = "", rank: int = 0) -> None:
        """The endpoints are those of the first rank; the others follow from them (`KvEndpoints.of_rank`)."""
        own = KvEndpoints(endpoint, replay_endpoint).of_rank(rank)
        self._endpoint = own.events
        self._replay_endpoint = own.replay
        self._rank = rank
        self._topic = topic.encode()
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=KEPT_MESSAGES)
        self._next = 0
        self._encoder = msgspec.msgpack.Encoder()
        self._context = zmq.asyncio.Context()
        self._pub: zmq.asyncio.Socket | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Bind both sockets and answer replay requests; needs a running event loop.

        Raises zmq.ZMQError when an address is taken.
        """
        self._pub = self._context.socket(zmq.PUB)
        self._pub.setsockopt(zmq.LINGER, 0)
        self._pub.bind(self._endpoint)
        if self._replay_endpoint:
            router = self._context.socket(zmq.ROUTER)
            router.setsockopt(zmq.LINGER, 0)
            router.bind(self._replay_endpoint)
            self._task = asyncio.create_task(self._replay(router), name="sim-kv-replay")

    async def close(self) -> None:
        """Close both sockets."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._pub is not None:
            self._pub.close()
        self._context.term()

    async def publish(self, events: list[KvEvent], ts: float) -> None:
        """Send one message; `ts` in seconds since 1970. A subscriber that does not read loses messages."""
        if not events or self._pub is None:
            return
        payload = self._encoder.encode([ts, events, self._rank])
        sequence, self._next = self._next, self._next + 1
        self._kept.append((sequence, payload))
        await self._pub.send_multipart([self._topic, sequence.to_bytes(8, "big"), payload])

    async def _replay(self, router: zmq.asyncio.Socket) -> None:
        with router:
            while True:
                frames = await router.recv_multipart()
                if len(frames) != 3 or len(frames[2]) != 8:
                    continue
                peer, first = frames[0], int.from_bytes(frames[2], "big")
                for sequence, payload in list(self._kept):
                    if sequence >= first:
                        await router.send_multipart(
                            [peer, b"", self._topic, sequence.to_bytes(8, "big"), payload]
                        )
                await router.send_multipart([peer, b"", b"", _END, b""])
