"""The simulated engine's KV events, read by the code that reads vLLM's."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import zmq.asyncio

from sim.engine.kv_events import KvPublisher
from sim.engine.loop import EngineLoop, RequestOutputCollector
from sim.engine.model import EngineModel, new_sequence
from sim.engine.step_model.engine import StepConfig
from sim.engine.text import encode, token_ids
from tests.support.clock import ManualClock
from tests.support.waiting import until
from workers.kv_endpoints import kv_endpoints, make_directory
from workers.kv_events import KvSubscriber
from workers.kv_events_feed import KvFeed, KvOutbox
from workers.kv_events_wire import KvEvent
from workers.token_blocks import packed, token_block_hashes
from workers.wire import Capacity

BLOCK = 16


class Rig:
    """A simulated engine in this process and a follower of its events."""

    def __init__(self, directory: Path, *, blocks: int) -> None:
        self.endpoints = kv_endpoints(directory, "h/m-0")
        capacity = Capacity(1e6, 1e-4, 1e-5, kv_cache_tokens=blocks * BLOCK)
        config = StepConfig(capacity, block_size=BLOCK, noise_cv=0, kv_events=True)
        publisher = KvPublisher(self.endpoints.events, self.endpoints.replay, topic="m")
        self.loop = EngineLoop(EngineModel(config), publishers=[publisher], speedup=100.0)
        self.context = zmq.asyncio.Context()
        self.tasks: list[asyncio.Task[None]] = []

    def follow(self) -> KvFeed:
        """What a follower that starts now gets to know."""
        feed = KvOutbox().feed("h/m-0")
        follower = KvSubscriber(
            self.endpoints, feed, boot_id=lambda: "boot-1", now=ManualClock().monotonic, context=self.context
        )
        self.tasks.append(asyncio.create_task(follower.run()))
        return feed

    async def say(self, prompt: str, salt: str, tokens: int) -> set[int]:
        """Run a prompt; the hashes of the blocks that its cache then holds."""
        sequence = new_sequence(encode(prompt), max_tokens=tokens, stops_by_itself=False, salt=salt)
        ticket: RequestOutputCollector = self.loop.submit([sequence])
        while sequence.finish_reason is None:
            await ticket.get()
        ids = token_ids(bytes(sequence.content))[:-1]
        return set(token_block_hashes(packed(ids), BLOCK, salt))

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.context.destroy(linger=0)
        await self.loop.close()


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    make_directory(tmp_path)
    rig = Rig(tmp_path, blocks=30)
    rig.loop.start()
    yield rig
    await rig.close()


def holds(feed: KvFeed, *hashes: set[int]) -> bool:
    return feed.live and set(feed.blocks.block_hashes()) == set().union(*hashes)


async def test_what_the_engine_holds_is_known_and_salted(rig: Rig) -> None:
    feed = rig.follow()
    one = await rig.say("once upon a time " * 8, "one", 40)
    two = await rig.say("once upon a time " * 8, "two", 40)
    assert one
    assert not one & two
    late = rig.follow()
    await until(lambda: holds(feed, one, two))
    await until(lambda: holds(late, one, two))


async def test_a_block_that_was_evicted_is_known_to_be_gone(rig: Rig) -> None:
    feed = rig.follow()
    for number in range(6):
        last = await rig.say(f"story number {number} " * 20, "", 100)
    await until(lambda: feed.live and last <= set(feed.blocks.block_hashes()))
    findable = rig.loop.model.ranks[0].pool.cached_count
    await until(lambda: len(set(feed.blocks.block_hashes())) == findable)
    assert findable <= 30


async def test_sleep_clears_everything(rig: Rig) -> None:
    feed = rig.follow()
    held = await rig.say("once upon a time " * 8, "one", 40)
    await until(lambda: holds(feed, held))
    await rig.loop.fall_asleep(1)
    await until(lambda: holds(feed))
    await rig.loop.wake([])
    again = await rig.say("once upon a time " * 8, "one", 40)
    assert again == held
    await until(lambda: holds(feed, held))


class Recorder:
    """A publisher that only notes events."""

    def __init__(self) -> None:
        self.events: list[KvEvent] = []

    def start(self) -> None: ...

    async def close(self) -> None: ...

    async def publish(self, events: list[KvEvent], ts: float) -> None:
        self.events += events


async def test_what_a_step_under_way_stored_is_told_before_sleep_clears_it() -> None:
    capacity = Capacity(1e6, 1e-4, 1e-5, kv_cache_tokens=30 * BLOCK)
    config = StepConfig(capacity, block_size=BLOCK, noise_cv=0, kv_events=True)
    recorder = Recorder()
    loop = EngineLoop(EngineModel(config), publishers=[recorder], speedup=1e-6)
    loop.start()
    sequence = new_sequence(encode("once upon a time " * 8), max_tokens=40, stops_by_itself=False, salt="")
    loop.submit([sequence])
    await until(lambda: loop._pending_events)
    await loop.fall_asleep(1)
    assert [type(event).__name__ for event in recorder.events][-2:] == ["Stored", "AllBlocksCleared"]
    assert loop._pending_events == []
    await loop.close()
