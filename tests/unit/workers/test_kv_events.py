"""Translation of an engine's events: the same hashes as from the tokens directly, in bounded memory."""

import asyncio
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.framing import MAX_FRAME_BYTES
from tests.support.kv_publisher import BLOCK, removed, stored
from workers.kv_endpoints import kv_endpoints, make_directory
from workers.kv_events_feed import MAX_HASHES, KvFeed, KvOutbox
from workers.kv_events_map import BlockMap
from workers.kv_events_wire import AllBlocksCleared, BlockStored, decode_batch
from workers.token_blocks import packed, token_block_hashes
from workers.wire import Capacity, Heartbeat, KvDelta, ReplicaState, ReplicaStatus

TOKENS = st.lists(st.integers(0, 5), max_size=6 * BLOCK)
RECORDED = Path(__file__).parents[2] / "data" / "kv_events" / "offloading.json"
SALTS = st.sampled_from(["", "tenant-a", "tenant-b"])


def direct(tokens: list[int], salt: str) -> list[int]:
    return token_block_hashes(packed(tokens), BLOCK, salt)


def heartbeat(feed: KvFeed, kind: str = "tokens") -> Heartbeat:
    status = ReplicaStatus(
        feed.replica_id, "m", "http://h", "vllm", feed.boot_id, ReplicaState.READY, Capacity(1, 1, 1)
    )
    status.prefix_kind = kind
    return Heartbeat("a", "h", "b", 1, "here", "local-cpu", 0, [status], {})


def live_feed(replica_id: str = "h/m-0") -> tuple[KvOutbox, KvFeed]:
    outbox = KvOutbox()
    feed = outbox.feed(replica_id)
    feed.begin("boot-1")
    feed.live = True
    outbox.on_heartbeat(heartbeat(feed))
    return outbox, feed


def known(deltas: list[KvDelta], before: set[int] | None = None) -> set[int]:
    """The blocks that a scheduler knows after the deltas."""
    belief = set(before or ())
    for delta in deltas:
        if delta.cleared:
            belief.clear()
        belief |= set(delta.stored)
        belief -= set(delta.removed)
    return belief


@given(st.lists(st.tuples(TOKENS, SALTS, st.integers(0, 5)), max_size=12))
def test_translation_equals_direct_hashing(prompts: list[tuple[list[int], str, int]]) -> None:
    blocks, cached = BlockMap(), set[int]()
    for tokens, salt, start in prompts:
        own = direct(tokens, salt)
        new, dropped = blocks.store(stored(tokens, salt, 0))
        assert not dropped
        assert set(new) == set(own) - cached
        cached |= set(own)
        gone = blocks.remove(removed(tokens, salt, start=start))
        assert set(gone) <= set(own[start:])
        cached -= set(gone)
        assert set(blocks.block_hashes()) == cached


@given(TOKENS, SALTS, st.integers(1, 5))
def test_a_prompt_that_continues_a_known_block(tokens: list[int], salt: str, start: int) -> None:
    blocks = BlockMap()
    head = tokens[: start * BLOCK]
    blocks.store(stored(head, salt))
    if len(tokens) > len(head):
        blocks.store(stored(tokens, salt, start))
    assert set(blocks.block_hashes()) == set(direct(tokens, salt))


@pytest.mark.promise(21)
def test_tenants_share_no_hash() -> None:
    tokens = list(range(4 * BLOCK))
    assert not set(direct(tokens, "a")) & set(direct(tokens, "b"))
    assert direct(tokens, "a")[:2] == direct([*tokens[: 2 * BLOCK], 7, 7, 7, 7], "a")[:2]


def test_content_stored_twice_is_removed_with_its_last_copy() -> None:
    blocks, tokens = BlockMap(), list(range(BLOCK))
    blocks.store(stored(tokens))
    blocks.store(stored(tokens))
    assert blocks.remove(removed(tokens)) == []
    assert blocks.remove(removed(tokens)) == direct(tokens, "")
    assert blocks.remove(removed(tokens)) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"lora_name": "adapter"},
        {"extra_keys": [["salt", ["image", 0]], None]},
        {"extra_keys": [[3], None]},
        {"parent_block_hash": 12345},
        {"medium": "CPU"},
        {"group_idx": 1},
        {"token_ids": [1, 2, 3]},
        {"token_ids": [-1] * 2 * BLOCK},
        {"block_size": BLOCK * 2},
    ],
)
def test_blocks_that_cannot_be_matched_are_skipped(changes: dict[str, object]) -> None:
    blocks = BlockMap()
    event = stored(list(range(2 * BLOCK)))
    for name, value in changes.items():
        setattr(event, name, value)
    assert blocks.store(event) == ([], [])
    assert len(blocks) == 0


def test_a_block_in_host_memory_counts_until_it_is_in_neither_place() -> None:
    blocks, tokens = BlockMap(), list(range(BLOCK))
    on_host, off_host = stored(tokens), removed(tokens)
    on_host.medium = off_host.medium = "CPU"
    on_host.token_ids, on_host.block_size = [], 0  # as vLLM sends it
    held = blocks.store(stored(tokens))[0]
    assert blocks.store(on_host) == ([], [])
    assert blocks.remove(removed(tokens)) == []
    assert blocks.store(stored(tokens)) == ([], []), "it came back, and the scheduler knows it"
    assert blocks.remove(off_host) == []
    assert blocks.remove(removed(tokens)) == held == direct(tokens, "")
    assert blocks.store(on_host) == ([], []), "nothing says what is in it"
    assert len(blocks) == 0


def test_copies_beyond_host_memory_are_not_followed() -> None:
    blocks, tokens = BlockMap(), list(range(BLOCK))
    held = blocks.store(stored(tokens))[0]
    far, gone = stored(tokens), removed(tokens)
    far.medium = gone.medium = "STORAGE"
    blocks.store(far)
    assert blocks.remove(gone) == []
    assert blocks.remove(removed(tokens)) == held


def test_recorded_events_say_what_the_engine_finds() -> None:
    """Events of vLLM 0.32 with OffloadingConnector, and how many tokens of each prompt it had cached: some came
    from its own cache, some from host memory, and some of those that both had dropped were computed."""
    recorded = json.loads(RECORDED.read_text())
    size, both, own, sources = recorded["block_size"], BlockMap(), BlockMap(), set[bool]()
    for request in recorded["requests"]:
        tokens = [request["first_token"], *range(10, 9 + recorded["prompt_tokens"])]
        chain = token_block_hashes(packed(tokens), size, "")
        held = set(both.block_hashes())
        found = next((at for at, each in enumerate(chain) if each not in held), len(chain))
        assert found * size == request["cached_tokens"], request["first_token"]
        if found:
            sources.add(set(chain) <= set(own.block_hashes()))
        for payload in request["events"]:
            events, unread = decode_batch(bytes.fromhex(payload))
            assert not unread
            for event in events:
                assert not isinstance(event, AllBlocksCleared)
                for blocks in (both, own) if event.medium == "GPU" else (both,):
                    if isinstance(event, BlockStored):
                        blocks.store(event)
                    else:
                        blocks.remove(event)
    assert sources == {True, False}, "found in the engine's cache, and on the host alone"


def test_images_in_a_later_block_end_the_chain() -> None:
    blocks, tokens = BlockMap(), list(range(3 * BLOCK))
    event = stored(tokens, "s")
    event.extra_keys = [["s"], None, [["image", 0]]]
    assert blocks.store(event)[0] == direct(tokens, "s")[:2]


def test_memory_is_bounded() -> None:
    blocks = BlockMap(max_blocks=10)
    feed_known: set[int] = set()
    for number in range(50):
        new, dropped = blocks.store(stored([number] * BLOCK))
        feed_known = (feed_known | set(new)) - set(dropped)
        assert len(blocks) <= 10
        assert feed_known == set(blocks.block_hashes())


@pytest.mark.parametrize("heard_before", [True, False])
def test_memory_is_bounded_without_a_scheduler(heard_before: bool) -> None:
    outbox, feed = live_feed()
    feed.blocks.max_blocks = 8
    if heard_before:
        outbox.take()
    belief: set[int] = set()
    for token in range(200):
        feed.apply([stored([token] * BLOCK)])
        feed.apply([removed([token] * BLOCK)])
        assert len(feed._pending) <= 2 * feed.blocks.max_blocks
    feed.apply([stored([7] * BLOCK)])
    assert known(outbox.take(), belief) == set(feed.blocks.block_hashes()) == set(direct([7] * BLOCK, ""))


def test_changes_are_merged_and_the_last_one_counts() -> None:
    outbox, feed = live_feed()
    first, second = list(range(BLOCK)), list(range(BLOCK, 2 * BLOCK))
    feed.apply([stored(first)])
    feed.apply([removed(first), stored(second)])
    [delta] = outbox.take()
    assert (delta.stored, delta.cleared, delta.seq) == (direct(second, ""), True, 1)
    assert outbox.take() == []
    feed.apply([removed(second)])
    [delta] = outbox.take()
    assert (delta.stored, delta.removed, delta.cleared, delta.seq) == ([], direct(second, ""), False, 2)


def test_the_first_delta_after_a_clear_is_marked_cleared() -> None:
    outbox, feed = live_feed()
    feed.apply([stored(list(range(3 * BLOCK)))])
    belief = known(outbox.take())
    feed.apply([AllBlocksCleared(), stored([9] * BLOCK)])
    assert known(outbox.take(), belief) == set(direct([9] * BLOCK, ""))


def test_no_delta_is_sent_before_the_boot_is_announced() -> None:
    outbox = KvOutbox()
    feed = outbox.feed("h/m-0")
    feed.begin("boot-1")
    feed.apply([stored(list(range(BLOCK)))])
    assert outbox.take() == []
    feed.live = True
    assert outbox.take() == []
    outbox.on_heartbeat(heartbeat(feed))
    belief = known(outbox.take())
    assert belief == set(direct(list(range(BLOCK)), ""))
    outbox.on_connected()
    assert outbox.take() == []
    outbox.on_heartbeat(heartbeat(feed))
    [delta] = outbox.take()
    assert delta.cleared
    assert set(delta.stored) == belief
    reported = heartbeat(feed)
    feed.begin("boot-2")
    feed.live = True
    outbox.on_heartbeat(reported)
    assert outbox.take() == []


def test_a_resync_sends_the_whole_content() -> None:
    outbox, feed = live_feed()
    feed.apply([stored(list(range(2 * BLOCK)))])
    belief = known(outbox.take())
    feed.apply([stored([9] * BLOCK)])
    outbox.take()  # lost
    outbox.changed.clear()
    outbox.resend("h/another")
    assert outbox.take() == []
    outbox.resend("h/m-0")
    assert outbox.changed.is_set()
    [delta] = outbox.take()
    assert (delta.cleared, delta.seq) == (True, 3)
    assert known([delta], belief) == set(feed.blocks.block_hashes())


def test_a_replica_that_becomes_matched_by_tokens_sends_its_whole_content() -> None:
    """The scheduler accepts no token blocks before that, and then starts with an empty cache."""
    outbox, feed = live_feed()
    outbox.take()
    outbox.on_heartbeat(heartbeat(feed, "text"))
    feed.apply([stored(list(range(BLOCK)))])
    assert outbox.take() == []
    for _ in range(2):
        outbox.on_heartbeat(heartbeat(feed))
    [delta] = outbox.take()
    assert (delta.cleared, delta.stored) == (True, direct(list(range(BLOCK)), ""))
    outbox.on_heartbeat(heartbeat(feed))
    assert outbox.take() == []


def test_large_states_are_split_over_frames() -> None:
    outbox, feed = live_feed()
    count = MAX_HASHES + 10
    tokens = [token for number in range(count) for token in (number, number, number, number)]
    own = direct(tokens, "")
    event = BlockStored(list(range(1, count + 1)), None, tokens, BLOCK)
    feed.apply([event])
    deltas = outbox.take()
    assert [delta.cleared for delta in deltas] == [True, False]
    assert known(deltas) == set(own)
    assert all(len(msgspec.msgpack.encode(delta)) < MAX_FRAME_BYTES for delta in deltas)


@given(st.binary(max_size=200))
def test_garbage_is_an_error_or_nothing(payload: bytes) -> None:
    try:
        events, unread = decode_batch(payload)
    except msgspec.DecodeError:
        return
    assert len(events) + unread >= 0


def test_unknown_events_are_skipped() -> None:
    good = stored(list(range(BLOCK)))
    payload = msgspec.msgpack.encode([1.0, [{"type": "BlockMoved"}, good, 7], 0])
    events, unread = decode_batch(payload)
    assert ([type(event) for event in events], unread) == ([BlockStored], 2)


def test_endpoints_are_stable_private_and_short(tmp_path_factory: pytest.TempPathFactory) -> None:
    near = tmp_path_factory.mktemp("d")
    far = near / ("deep" * 30)
    for data_dir in (near, far):
        make_directory(data_dir)
        one, other = kv_endpoints(data_dir, "h/m-0"), kv_endpoints(data_dir, "h/m-1")
        assert one == kv_endpoints(data_dir, "h/m-0")
        assert len({one.events, one.replay, other.events, other.replay}) == 4
        assert all(len(path.removeprefix("ipc://")) <= 104 for path in (one.events, one.replay))


def test_the_event_of_the_outbox_wakes_once() -> None:
    outbox, feed = live_feed()
    outbox.take()
    assert not outbox.changed.is_set()
    feed.apply([stored(list(range(BLOCK)))])
    assert isinstance(outbox.changed, asyncio.Event)
    assert outbox.changed.is_set()
