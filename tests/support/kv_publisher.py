"""A stand-in for vLLM's event publisher: the same sockets, frames, replay and block hashes chained as vLLM does."""

import asyncio
from collections import deque
from collections.abc import Sequence
from hashlib import sha256

import msgspec
import zmq
import zmq.asyncio

from workers.kv_endpoints import KvEndpoints
from workers.kv_events_wire import BlockRemoved, BlockStored, KvEvent

BLOCK = 4


def engine_hashes(tokens: Sequence[int], salt: str = "") -> list[int]:
    """The engine's own hashes of a prompt's whole blocks: nothing like Penstock's, chained and salted all the same."""
    previous, hashes = b"none", []
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        extra = salt if start == 0 else ""
        previous = sha256(repr((previous, list(tokens[start : start + BLOCK]), extra)).encode()).digest()
        hashes.append(int.from_bytes(previous[:8], "big"))
    return hashes


def stored(tokens: Sequence[int], salt: str = "", start: int = 0) -> BlockStored:
    """The event for the blocks of a prompt from block `start` on."""
    hashes = engine_hashes(tokens, salt)
    keys: list[list[object] | None] = [None for _ in hashes]
    if salt and keys:
        keys[0] = [salt]
    return BlockStored(
        block_hashes=list(hashes[start:]),
        parent_block_hash=hashes[start - 1] if start else None,
        token_ids=list(tokens[start * BLOCK : len(hashes) * BLOCK]),
        block_size=BLOCK,
        medium="GPU",
        extra_keys=keys[start:] or None,
        group_idx=0,
    )


def removed(tokens: Sequence[int], salt: str = "", *, start: int = 0) -> BlockRemoved:
    """The event for the eviction of a prompt's blocks from block `start` on."""
    return BlockRemoved(block_hashes=list(engine_hashes(tokens, salt)[start:]), medium="GPU", group_idx=0)


class Publisher:
    """PUB and ROUTER sockets with a replay buffer."""

    def __init__(self, endpoints: KvEndpoints, *, buffer: int = 10_000) -> None:
        self._context = zmq.asyncio.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._pub.bind(endpoints.events)
        self._router = self._context.socket(zmq.ROUTER)
        self._router.bind(endpoints.replay)
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer)
        self._next = 0
        self.replays = 0
        self.ts = 1.0
        """Of the next messages: seconds since 1970 by the engine's clock."""
        self.mute = False
        """Do not answer replay requests."""
        self._task = asyncio.create_task(self._serve())

    async def publish(self, *events: KvEvent, lose: bool = False) -> None:
        """Send one message; with `lose` only the replay buffer hears of it."""
        await self.publish_raw(msgspec.msgpack.encode([self.ts, list(events), 0]), lose=lose)

    async def publish_raw(self, payload: bytes, *, lose: bool = False) -> None:
        """Send any payload under the next number."""
        seq, self._next = self._next, self._next + 1
        self._buffer.append((seq, payload))
        if not lose:
            await self._pub.send_multipart([b"topic", seq.to_bytes(8, "big"), payload])

    async def send_frames(self, *frames: bytes) -> None:
        """Send whatever, under no number."""
        await self._pub.send_multipart(list(frames))

    def forget(self) -> None:
        """Nothing can be replayed any more."""
        self._buffer.clear()

    def restart(self) -> None:
        """Count from 0 again with nothing kept, as another engine behind the same sockets."""
        self.forget()
        self._next, self.ts = 0, self.ts + 1.0

    async def close(self) -> None:
        """Gone, as an engine that was killed."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._context.destroy(linger=0)

    async def _serve(self) -> None:
        while True:
            client, _, start = await self._router.recv_multipart()
            self.replays += 1
            if self.mute:
                continue
            for seq, payload in list(self._buffer):
                if seq >= int.from_bytes(start, "big"):
                    await self._router.send_multipart(
                        [client, b"", b"topic", seq.to_bytes(8, "big"), payload]
                    )
            end = (-1).to_bytes(8, "big", signed=True)
            await self._router.send_multipart([client, b"", b"", end, b""])
