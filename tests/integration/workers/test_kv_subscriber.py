"""KvSubscriber with real ZMQ sockets: late subscription, gaps, replay, restarts, clears and invalid messages."""

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


def has_message(socket: zmq.asyncio.Socket) -> bool:
    """Whether the socket has an unread message."""
    return bool(socket.get(zmq.EVENTS) & zmq.POLLIN)


class Subscription:
    """A subscriber of one replica, with its engine's boot and clock set by the test."""

    def __init__(self, endpoints: KvEndpoints) -> None:
        self.endpoints = endpoints
        self.boot_id = "boot-1"
        self.block_tokens = 0
        self.clock = ManualClock()
        self.feed: KvFeed = KvOutbox().feed("h/m-0")
        self.context = zmq.asyncio.Context()
        self.subscriber = KvSubscriber(
            endpoints,
            self.feed,
            boot_id=lambda: self.boot_id,
            now=self.clock.monotonic,
            context=self.context,
            block_tokens=lambda: self.block_tokens,
        )
        self.task = asyncio.create_task(self.subscriber.run())

    def holds(self, *prompts: list[int]) -> bool:
        """Whether the feed is live and holds exactly these prompts' blocks."""
        return self.feed.live and set(self.feed.blocks.block_hashes()) == own(*prompts)

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.context.destroy(linger=0)


@pytest.fixture
async def subscription(tmp_path: Path) -> AsyncIterator[Subscription]:
    make_directory(tmp_path)
    follower = Subscription(kv_endpoints(tmp_path, "h/m-0"))
    yield follower
    await follower.close()


@pytest.fixture
async def publisher(subscription: Subscription) -> AsyncIterator[Publisher]:
    engine = Publisher(subscription.endpoints)
    yield engine
    await engine.close()


async def subscribed(subscription: Subscription, publisher: Publisher, tokens: list[int]) -> None:
    """Wait until the subscription works: after the first replay these blocks can only arrive through it."""
    await until(lambda: subscription.feed.live)

    async def arrived() -> bool:
        await publisher.publish(AllBlocksCleared(), stored(tokens, SALT))
        return subscription.holds(tokens)

    await until(arrived)


async def test_messages_from_before_the_subscription_are_replayed(subscription: Subscription) -> None:
    await until(lambda: subscription.feed.boot_id == "boot-1")
    assert not subscription.feed.live
    publisher = Publisher(subscription.endpoints)
    try:
        await publisher.publish(stored(ONE, SALT), lose=True)
        await publisher.publish(stored(TWO, SALT), removed(ONE, SALT), lose=True)
        await until(lambda: subscription.holds(TWO))
    finally:
        await publisher.close()


async def test_live_messages_and_clearing(subscription: Subscription, publisher: Publisher) -> None:
    await subscribed(subscription, publisher, ONE)
    await publisher.publish(stored(TWO, SALT))
    await until(lambda: subscription.holds(ONE, TWO))
    await publisher.publish(AllBlocksCleared(), stored(THREE, SALT))
    await until(lambda: subscription.holds(THREE))


async def test_a_gap_is_replayed(subscription: Subscription, publisher: Publisher) -> None:
    await subscribed(subscription, publisher, ONE)
    await publisher.publish(removed(ONE, SALT), lose=True)
    await publisher.publish(stored(TWO, SALT), lose=True)
    await publisher.publish(stored(THREE, SALT))
    await until(lambda: subscription.holds(TWO, THREE))


async def test_a_gap_that_cannot_be_replayed_clears(subscription: Subscription, publisher: Publisher) -> None:
    await subscribed(subscription, publisher, ONE)
    subscription.feed.take()
    await publisher.publish(stored(TWO, SALT), lose=True)
    publisher.forget()
    await publisher.publish(stored(THREE, SALT))
    await until(lambda: subscription.holds(THREE))
    subscription.feed.announced = True
    [delta] = subscription.feed.take()
    assert delta.cleared
    assert set(delta.stored) == own(THREE)


async def test_a_replay_that_is_never_answered_clears(
    subscription: Subscription, publisher: Publisher
) -> None:
    await subscribed(subscription, publisher, ONE)
    publisher.mute = True
    before = publisher.replays
    await publisher.publish(stored(TWO, SALT), lose=True)
    await publisher.publish(stored(THREE, SALT))
    await until(lambda: publisher.replays > before)
    assert subscription.holds(ONE)
    subscription.clock.advance(REPLAY_TIMEOUT_S)
    await until(lambda: subscription.holds(THREE))


async def test_a_lost_last_message_is_found_by_the_idle_check(
    subscription: Subscription, publisher: Publisher
) -> None:
    await subscribed(subscription, publisher, ONE)
    await publisher.publish(stored(TWO, SALT), lose=True)

    def found() -> bool:
        subscription.clock.advance(1)
        return subscription.holds(ONE, TWO)

    await until(found)


async def test_another_boot_begins_with_nothing(subscription: Subscription, publisher: Publisher) -> None:
    await subscribed(subscription, publisher, ONE)
    await publisher.close()
    again = Publisher(subscription.endpoints)
    try:
        subscription.boot_id = "boot-2"
        await until(lambda: subscription.feed.boot_id == "boot-2" and subscription.holds())
        await again.publish(stored(TWO, SALT))
        await until(lambda: subscription.holds(TWO))
    finally:
        await again.close()


async def test_garbage_is_skipped(subscription: Subscription, publisher: Publisher) -> None:
    await subscribed(subscription, publisher, ONE)
    await publisher.send_frames(b"only one frame")
    await publisher.send_frames(b"topic", b"short", b"x")
    await publisher.publish_raw(b"\xc1 not msgpack")
    await publisher.publish_raw(b"\x93\x01\x02\x03")
    await publisher.publish(stored(TWO, SALT))
    await until(lambda: subscription.holds(ONE, TWO))


async def test_a_restarted_sequence_is_replayed_from_the_start(
    subscription: Subscription, publisher: Publisher
) -> None:
    await subscribed(subscription, publisher, ONE)
    await publisher.publish(stored(TWO, SALT))
    await until(lambda: subscription.holds(ONE, TWO))
    publisher.restart()
    await publisher.publish(stored(THREE, SALT))
    await until(lambda: subscription.holds(THREE))
    await publisher.publish(stored(ONE, SALT))
    await until(lambda: subscription.holds(ONE, THREE))


async def test_repeated_messages_are_no_restart(subscription: Subscription, publisher: Publisher) -> None:
    await subscribed(subscription, publisher, ONE)
    await publisher.publish(stored(TWO, SALT))
    await until(lambda: subscription.holds(ONE, TWO))
    replays = publisher.replays
    old = msgspec.msgpack.encode([publisher.ts, [stored(THREE, SALT)], 0])
    await publisher.send_frames(b"topic", (0).to_bytes(8, "big"), old)
    await publisher.publish(removed(ONE, SALT))
    await until(lambda: subscription.holds(TWO))
    assert publisher.replays == replays


async def test_a_first_event_of_another_block_size_is_skipped(
    subscription: Subscription, publisher: Publisher
) -> None:
    odd = BlockStored([1], None, list(range(BLOCK + 1)), BLOCK + 1)
    await publisher.publish(odd, lose=True)
    await publisher.publish(stored(ONE, SALT), lose=True)
    await until(lambda: subscription.feed.live)
    assert subscription.feed.blocks.block_tokens == BLOCK + 1
    subscription.block_tokens = BLOCK
    await until(lambda: subscription.holds(ONE))
    assert subscription.feed.blocks.fits


async def test_an_engine_of_another_block_size_throughout_does_not_fit(
    subscription: Subscription, publisher: Publisher
) -> None:
    subscription.block_tokens = BLOCK + 1
    await publisher.publish(stored(ONE, SALT), lose=True)
    await until(lambda: subscription.feed.live)
    assert subscription.holds()
    assert not subscription.feed.blocks.fits


async def test_a_replay_continues_while_the_sequence_restarts(tmp_path: Path) -> None:
    """Both sockets have a message, and handling the first one closes the second socket."""
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
        while not has_message(stream._live):
            await engine.send_multipart(
                [*first, payload(1.0)]
            )  # messages are dropped until the subscription has arrived
            await asyncio.sleep(0)
        await engine.send_multipart([*first, payload(0.5)])
        while (await stream._live.recv_multipart())[2] != payload(0.5):
            pass
        await engine.send_multipart([*first, payload(2.0)])
        await replays.send_multipart([asker, b"", b"", (1).to_bytes(8, "big"), payload(1.0)])
        await until(lambda: has_message(stream._live) and has_message(stream._replay))
        await stream.step(1.0)
        assert stream._next == 0, "followed from the first message on again"
        again = await replays.recv_multipart()
        assert again[0] != asker
    finally:
        stream.close()
        context.destroy(linger=0)


async def test_a_failed_socket_is_replaced_and_the_feed_is_not_live_meanwhile(
    subscription: Subscription,
    publisher: Publisher,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await subscribed(subscription, publisher, ONE)
    monkeypatch.setattr(kv_events, "RETRY_S", 0.0)
    whole, failed = kv_events._Stream.step, 0

    async def step(self: object, wait_s: float) -> None:
        nonlocal failed
        failed += 1
        raise zmq.ZMQError(zmq.ENOTSOCK)

    monkeypatch.setattr(kv_events._Stream, "step", step)
    await until(lambda: failed > 2)
    assert not subscription.feed.live
    assert len(subscription.feed.blocks) == 0
    assert not subscription.task.done()
    assert any("h/m-0" in record.getMessage() for record in caplog.records)
    monkeypatch.setattr(kv_events._Stream, "step", whole)
    await until(lambda: subscription.holds(ONE))
    await publisher.publish(stored(TWO, SALT))
    await until(lambda: subscription.holds(ONE, TWO))
