"""Following a publisher over real ZMQ sockets: late joining, gaps, replay, restarts, clears and garbage."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import zmq.asyncio

from tests.support.clock import ManualClock
from tests.support.kv_publisher import BLOCK, Publisher, removed, stored
from tests.support.waiting import until
from workers import kv_events
from workers.kv_endpoints import KvEndpoints, kv_endpoints, make_directory
from workers.kv_events import REPLAY_TIMEOUT_S, KvSubscriber
from workers.kv_events_feed import KvFeed, KvOutbox
from workers.kv_events_wire import AllBlocksCleared, BlockStored
from workers.token_blocks import packed, token_block_hashes

SALT = "tenant"
ONE, TWO, THREE = ([number] * 3 * BLOCK for number in (1, 2, 3))


def own(*prompts: list[int]) -> set[int]:
    return {each for tokens in prompts for each in token_block_hashes(packed(tokens), BLOCK, SALT)}


def readable(socket: zmq.asyncio.Socket) -> bool:
    """Whether a message has come that nobody has taken yet."""
    return bool(socket.get(zmq.EVENTS) & zmq.POLLIN)


class Following:
    """A follower of one replica, its engine's boot and its clock in the test's hands."""

    def __init__(self, endpoints: KvEndpoints) -> None:
        self.endpoints = endpoints
        self.boot_id = "boot-1"
        self.block_tokens = 0
        self.clock = ManualClock()
        self.feed: KvFeed = KvOutbox().feed("h/m-0")
        self.context = zmq.asyncio.Context()
        self.follower = KvSubscriber(
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
        return self.feed.live and set(self.feed.blocks.block_hashes()) == own(*prompts)

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
    following.feed.announced = True
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
    following.clock.advance(REPLAY_TIMEOUT_S)
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


async def test_a_replay_goes_on_while_the_engine_begins_to_count_anew(tmp_path: Path) -> None:
    """Both sockets have something to say, and what the first says makes us close the second."""
    make_directory(tmp_path)
    endpoints, feed = kv_endpoints(tmp_path, "h/m-0"), KvOutbox().feed("h/m-0")
    context = zmq.asyncio.Context()
    engine, replays = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
    engine.bind(endpoints.events)
    replays.bind(endpoints.replay)
    feed.begin("boot-1")
    stream = kv_events._Stream(endpoints, feed, ManualClock().monotonic, context)

    def payload(ts: float, *events: object) -> bytes:
        return msgspec.msgpack.encode([ts, list(events), 0])

    try:
        stream.begin()
        asker, _, start = await replays.recv_multipart()
        await replays.send_multipart([asker, b"", b"", start, payload(1.0, stored(ONE, SALT))])
        while not stream._next:
            await stream.step(1.0)
        first = [b"", (0).to_bytes(8, "big")]
        while not readable(stream._live):
            await engine.send_multipart(
                [*first, payload(1.0)]
            )  # nobody hears before the subscription arrived
            await asyncio.sleep(0)
        await engine.send_multipart([*first, payload(0.5)])
        while (await stream._live.recv_multipart())[2] != payload(0.5):
            pass
        await engine.send_multipart([*first, payload(2.0)])
        await replays.send_multipart([asker, b"", b"", (1).to_bytes(8, "big"), payload(1.0)])
        await until(lambda: readable(stream._live) and readable(stream._replay))
        await stream.step(1.0)
        assert stream._next == 0, "followed from the first message on again"
        again = await replays.recv_multipart()
        assert again[0] != asker
    finally:
        stream.close()
        context.destroy(linger=0)


async def test_a_socket_that_fails_is_no_end_and_the_feed_is_not_live_meanwhile(
    following: Following,
    publisher: Publisher,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await heard(following, publisher, ONE)
    monkeypatch.setattr(kv_events, "RETRY_S", 0.0)
    whole, failed = kv_events._Stream.step, 0

    async def step(self: object, wait_s: float) -> None:
        nonlocal failed
        failed += 1
        raise zmq.ZMQError(zmq.ENOTSOCK)

    monkeypatch.setattr(kv_events._Stream, "step", step)
    await until(lambda: failed > 2)
    assert not following.feed.live
    assert len(following.feed.blocks) == 0
    assert not following.task.done()
    assert any("h/m-0" in record.getMessage() for record in caplog.records)
    monkeypatch.setattr(kv_events._Stream, "step", whole)
    await until(lambda: following.holds(ONE))
    await publisher.publish(stored(TWO, SALT))
    await until(lambda: following.holds(ONE, TWO))
