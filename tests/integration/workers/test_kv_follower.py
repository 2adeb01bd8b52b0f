"""Following a publisher over real ZMQ sockets: late joining, gaps, replay, restarts, clears and garbage."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import zmq.asyncio

from core.clock import ManualClock
from tests.support.kv_publisher import BLOCK, Publisher, removed, stored
from tests.support.waiting import until
from workers.kv_endpoints import KvEndpoints, kv_endpoints, make_directory
from workers.kv_events import REPLAY_S, KvFollower
from workers.kv_events_feed import KvFeed, KvOutbox
from workers.kv_events_wire import AllBlocksCleared, BlockStored
from workers.token_blocks import packed, token_block_hashes

SALT = "tenant"
ONE, TWO, THREE = ([number] * 3 * BLOCK for number in (1, 2, 3))


def own(*prompts: list[int]) -> set[int]:
    return {each for tokens in prompts for each in token_block_hashes(packed(tokens), BLOCK, SALT)}


class Following:
    """A follower of one replica, its engine's boot and its clock in the test's hands."""

    def __init__(self, endpoints: KvEndpoints) -> None:
        self.endpoints = endpoints
        self.boot_id = "boot-1"
        self.block_tokens = 0
        self.clock = ManualClock()
        self.feed: KvFeed = KvOutbox().feed("h/m-0")
        self.context = zmq.asyncio.Context()
        self.follower = KvFollower(
            endpoints,
            self.feed,
            boot_id=lambda: self.boot_id,
            now=self.clock.monotonic,
            context=self.context,
            block_tokens=lambda: self.block_tokens,
        )
        self.task = asyncio.create_task(self.follower.run())

    def holds(self, *prompts: list[int]) -> bool:
        """Whether exactly these prompts' blocks are known, live."""
        return self.feed.live and set(self.feed.blocks.own_hashes()) == own(*prompts)

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.context.destroy(linger=0)


@pytest.fixture
async def following(tmp_path: Path) -> AsyncIterator[Following]:
    make_directory(tmp_path)
    follower = Following(kv_endpoints(tmp_path, "h/m-0"))
    yield follower
    await follower.close()


@pytest.fixture
async def publisher(following: Following) -> AsyncIterator[Publisher]:
    engine = Publisher(following.endpoints)
    yield engine
    await engine.close()


async def heard(following: Following, publisher: Publisher, tokens: list[int]) -> None:
    """Wait until the subscription works: after the first replay nothing else can bring these blocks here."""
    await until(lambda: following.feed.live)

    async def arrived() -> bool:
        await publisher.publish(AllBlocksCleared(), stored(tokens, SALT))
        return following.holds(tokens)

    await until(arrived)


async def test_what_was_published_before_anybody_listened(following: Following) -> None:
    await until(lambda: following.feed.boot_id == "boot-1")
    assert not following.feed.live
    publisher = Publisher(following.endpoints)
    try:
        await publisher.publish(stored(ONE, SALT), lose=True)
        await publisher.publish(stored(TWO, SALT), removed(ONE, SALT), lose=True)
        await until(lambda: following.holds(TWO))
    finally:
        await publisher.close()


async def test_live_messages_and_clearing(following: Following, publisher: Publisher) -> None:
    await heard(following, publisher, ONE)
    await publisher.publish(stored(TWO, SALT))
    await until(lambda: following.holds(ONE, TWO))
    await publisher.publish(AllBlocksCleared(), stored(THREE, SALT))
    await until(lambda: following.holds(THREE))


async def test_a_gap_is_replayed(following: Following, publisher: Publisher) -> None:
    await heard(following, publisher, ONE)
    await publisher.publish(removed(ONE, SALT), lose=True)
    await publisher.publish(stored(TWO, SALT), lose=True)
    await publisher.publish(stored(THREE, SALT))
    await until(lambda: following.holds(TWO, THREE))


async def test_a_gap_that_cannot_be_replayed_clears(following: Following, publisher: Publisher) -> None:
    await heard(following, publisher, ONE)
    following.feed.take()
    await publisher.publish(stored(TWO, SALT), lose=True)
    publisher.forget()
    await publisher.publish(stored(THREE, SALT))
    await until(lambda: following.holds(THREE))
    following.feed.told = True
    [delta] = following.feed.take()
    assert delta.cleared
    assert set(delta.stored) == own(THREE)


async def test_a_replay_that_is_never_answered_clears(following: Following, publisher: Publisher) -> None:
    await heard(following, publisher, ONE)
    publisher.mute = True
    before = publisher.replays
    await publisher.publish(stored(TWO, SALT), lose=True)
    await publisher.publish(stored(THREE, SALT))
    await until(lambda: publisher.replays > before)
    assert following.holds(ONE)
    following.clock.advance(REPLAY_S)
    await until(lambda: following.holds(THREE))


async def test_a_lost_last_message_is_found_by_the_audit(following: Following, publisher: Publisher) -> None:
    await heard(following, publisher, ONE)
    await publisher.publish(stored(TWO, SALT), lose=True)

    def found() -> bool:
        following.clock.advance(1)
        return following.holds(ONE, TWO)

    await until(found)


async def test_another_boot_begins_with_nothing(following: Following, publisher: Publisher) -> None:
    await heard(following, publisher, ONE)
    await publisher.close()
    again = Publisher(following.endpoints)
    try:
        following.boot_id = "boot-2"
        await until(lambda: following.feed.boot_id == "boot-2" and following.holds())
        await again.publish(stored(TWO, SALT))
        await until(lambda: following.holds(TWO))
    finally:
        await again.close()


async def test_garbage_is_skipped(following: Following, publisher: Publisher) -> None:
    await heard(following, publisher, ONE)
    await publisher.send_frames(b"only one frame")
    await publisher.send_frames(b"topic", b"short", b"x")
    await publisher.publish_raw(b"\xc1 not msgpack")
    await publisher.publish_raw(b"\x93\x01\x02\x03")
    await publisher.publish(stored(TWO, SALT))
    await until(lambda: following.holds(ONE, TWO))


async def test_an_engine_that_counts_from_the_start_again_is_followed_anew(
    following: Following, publisher: Publisher
) -> None:
    await heard(following, publisher, ONE)
    await publisher.publish(stored(TWO, SALT))
    await until(lambda: following.holds(ONE, TWO))
    publisher.restart()
    await publisher.publish(stored(THREE, SALT))
    await until(lambda: following.holds(THREE))
    await publisher.publish(stored(ONE, SALT))
    await until(lambda: following.holds(ONE, THREE))


async def test_messages_that_come_again_are_no_restart(following: Following, publisher: Publisher) -> None:
    await heard(following, publisher, ONE)
    await publisher.publish(stored(TWO, SALT))
    await until(lambda: following.holds(ONE, TWO))
    replays = publisher.replays
    old = msgspec.msgpack.encode([publisher.ts, [stored(THREE, SALT)], 0])
    await publisher.send_frames(b"topic", (0).to_bytes(8, "big"), old)
    await publisher.publish(removed(ONE, SALT))
    await until(lambda: following.holds(TWO))
    assert publisher.replays == replays


async def test_a_first_event_of_another_block_size_is_not_taken_for_the_engines(
    following: Following, publisher: Publisher
) -> None:
    odd = BlockStored([1], None, list(range(BLOCK + 1)), BLOCK + 1)
    await publisher.publish(odd, lose=True)
    await publisher.publish(stored(ONE, SALT), lose=True)
    await until(lambda: following.feed.live)
    assert following.feed.blocks.block_tokens == BLOCK + 1
    following.block_tokens = BLOCK
    await until(lambda: following.holds(ONE))
    assert following.feed.blocks.fits


async def test_an_engine_of_another_block_size_throughout_does_not_fit(
    following: Following, publisher: Publisher
) -> None:
    following.block_tokens = BLOCK + 1
    await publisher.publish(stored(ONE, SALT), lose=True)
    await until(lambda: following.feed.live)
    assert following.holds()
    assert not following.feed.blocks.fits
