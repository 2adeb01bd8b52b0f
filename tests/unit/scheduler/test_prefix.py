"""The prefix index and both sources of what is in it, against models too naive to be wrong."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from scheduler.core.mirror import COMPACT_FACTOR, COMPACT_MIN, OVERFILL_FACTOR, MirroredPrefixes
from scheduler.core.prefix import NEVER, NOT_CACHED, CachedPrefix, ExactPrefixes
from scheduler.core.prefix_index import (
    FINE_DEPTH,
    MAX_DEPTH,
    SAMPLED_DEPTHS,
    SAMPLES_PER_DOUBLING,
    PrefixIndex,
    sampled_hashes,
)
from scheduler.core.prefix_tree import PrefixTree
from workers.wire import KvDelta

MAX_HASH = 2**64 - 1
CHAINS = [[10 * root + depth + 1 for depth in range(9)] for root in range(3)]
"""Three chains of nine blocks; prefixes of them are the prompts of the machines."""

BRANCHES = [
    [(part if depth >= part else 0) * 100 + depth for depth in range(1, length + 1)]
    for part in (1, 2, 4, 7)
    for length in (3, 8, 17, 50)
]
"""Chains of one root that part from it at the first, second, fourth and seventh block."""


def chained(blocks: list[int]) -> list[int]:
    """A chain whose every hash names all before it, as prompts' hashes do."""
    return [hash(tuple(blocks[: depth + 1])) & MAX_HASH for depth in range(len(blocks))]


prompts = st.lists(
    st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=12).map(chained), st.integers(0, 300)),
    max_size=60,
)
chains = st.tuples(st.integers(0, 2), st.integers(1, 9)).map(lambda drawn: CHAINS[drawn[0]][: drawn[1]])


def mirrored(room: int = 100_000, most: int = 1000) -> MirroredPrefixes:
    return MirroredPrefixes(PrefixTree(), 0, room, most)


def held(source: MirroredPrefixes | ExactPrefixes, blocks: list[int], bit: int = 1) -> int:
    """Leading blocks that the index gives to the replica `bit`."""
    known = source._tree if isinstance(source, MirroredPrefixes) else source._index
    return next((depth for bits, depth in known.match(blocks) if bits & bit), 0)


def delta(
    stored: list[int] | None = None, removed: list[int] | None = None, *, cleared: bool = False
) -> KvDelta:
    return KvDelta("host/r0", "boot-1", 1, stored or [], removed or [], cleared)


@given(st.integers(1, 5000))
def test_marks_reach_from_the_first_block_to_the_last(length: int) -> None:
    hashes, depths = sampled_hashes(range(1, length + 1))
    assert hashes == depths
    assert depths[0] == 1
    assert depths[-1] == min(length, MAX_DEPTH)
    assert len(depths) <= len(SAMPLED_DEPTHS) + 1
    for lower, upper in pairwise(depths):
        assert 1 <= upper - lower <= max(1, lower // SAMPLES_PER_DOUBLING)


def test_the_ruler_is_fine_where_prompts_are_short() -> None:
    assert SAMPLED_DEPTHS[:FINE_DEPTH] == tuple(range(1, FINE_DEPTH + 1))
    assert SAMPLED_DEPTHS[-1] == MAX_DEPTH


def naive(owned: list[set[int]], blocks: list[int]) -> list[int]:
    """Leading marked blocks that each replica holds, without a hole among them."""
    hashes, depths = sampled_hashes(blocks)
    found = []
    for mine in owned:
        reached = 0
        for block, depth in zip(hashes, depths, strict=True):
            if block not in mine:
                break
            reached = depth
        found.append(reached)
    return found


@settings(deadline=None, max_examples=60)
@given(st.randoms(use_true_random=False), st.integers(1, 300))
def test_a_match_is_what_sets_of_blocks_would_say(rng: random.Random, length: int) -> None:
    index, owned = PrefixIndex(), [set[int]() for _ in range(70)]
    chain = [rng.getrandbits(64) for _ in range(length)]
    for row, mine in enumerate(owned):
        for block in sampled_hashes(chain[: rng.randrange(length + 1)])[0]:
            mine.add(block)
            index.add(block, 1 << row)
    for _ in range(length // 3):
        row, block = rng.randrange(len(owned)), rng.choice(chain)
        owned[row].discard(block)
        index.drop(block, 1 << row)
    matched = [0] * len(owned)
    seen = 0
    for bits, depth in index.match(chain):
        assert bits & seen == 0, "a replica is named once"
        seen |= bits
        for row in range(len(owned)):
            if bits >> row & 1:
                matched[row] = depth
    assert matched == naive(owned, chain)
    assert len(index) == len(set.union(*owned))


@given(prompts, st.integers(1, 5000), st.integers(1, 30))
def test_a_mirror_stays_within_its_bounds(routed: list[tuple[list[int], int]], room: int, most: int) -> None:
    mirror = mirrored(room, most)
    for now, (prompt, tokens) in enumerate(routed):
        mirror.on_route(prompt, tokens, now)
        assert len(mirror) <= OVERFILL_FACTOR * max(most, MAX_DEPTH)
        assert mirror.tokens <= OVERFILL_FACTOR * room
        mirror.on_close(prompt, tokens, 7, now)
        assert len(mirror) <= most
        assert 0 <= mirror.tokens <= room
    mirror.clear()
    assert (len(mirror), mirror.tokens, len(mirror._tree)) == (0, 0, 0)


def test_prompts_that_nobody_ends_are_bounded_too() -> None:
    mirror = mirrored(room=10**9, most=100)
    for number in range(6):
        mirror.on_route(range(number * 10_000, number * 10_000 + 3_000), 10, float(number))
        assert len(mirror) <= OVERFILL_FACTOR * MAX_DEPTH
    mirror.trim(7.0)
    assert len(mirror) == 100


@given(st.lists(st.integers(0, MAX_HASH), min_size=1, max_size=200, unique=True))
def test_a_prompt_that_fits_is_matched_whole(prompt: list[int]) -> None:
    mirror = mirrored()
    mirror.on_route(prompt, 10, 0.0)
    assert held(mirror, prompt) == held(mirror, [*prompt, 1]) == len(prompt)


def test_leaves_are_forgotten_before_their_prefix() -> None:
    mirror = mirrored(room=400)
    mirror.on_close([1, 2, 3, 4], 100, 0, 0.0)
    mirror.on_close([9, 8], 100, 0, 1.0)
    assert (held(mirror, [1, 2, 3, 4]), held(mirror, [9, 8])) == (2, 2)


def test_answers_take_room_too() -> None:
    mirror = mirrored(room=400)
    mirror.on_close([1, 2, 3], 100, 250, 0.0)
    assert (held(mirror, [1, 2, 3]), mirror.tokens) == (3, 300)
    mirror.on_close([1, 2, 3], 100, 50, 1.0)
    assert mirror.tokens == 350


def test_what_a_full_engine_has_lost_takes_all_that_is_older_with_it() -> None:
    mirror = mirrored()
    for now, prompt in enumerate(([1, 2], [3, 4], [5, 6])):
        assert mirror.on_route(prompt, 10, float(now)) == NOT_CACHED
    before = mirror.on_route([3, 4], 10, 10.0)
    assert before == CachedPrefix(2, 1.0)
    mirror.on_miss(before.last_used_at)
    assert [held(mirror, prompt) for prompt in ([1, 2], [3, 4], [5, 6])] == [0, 2, 2]


def test_a_prompt_given_up_before_its_prefill_leaves_what_was_cached_before() -> None:
    mirror = mirrored()
    mirror.on_close([1, 2], 10, 0, 0.0)
    mirror.on_route([1, 2, 3, 4], 10, 1.0)
    mirror.on_abandon([1, 2, 3, 4], 2, 1.0, 2.0)
    assert held(mirror, [1, 2, 3, 4]) == 2


def test_what_others_use_is_not_given_up_with_a_prompt() -> None:
    mirror = mirrored()
    mirror.on_route([1, 2, 3, 4], 10, 1.0)
    mirror.on_route([1, 2, 3, 4, 5, 6], 10, 2.0)
    mirror.on_abandon([1, 2, 3, 4], 0, 1.0, 3.0)
    assert held(mirror, [1, 2, 3, 4, 5, 6]) == len(mirror) == 6, "the longer prompt brings what it needs"
    mirror.on_route([1, 2, 3, 4, 5, 6], 10, 4.0)
    mirror.on_abandon([1, 2, 3, 4, 5, 6], 0, 2.0, 5.0)
    assert held(mirror, [1, 2, 3, 4, 5, 6]) == 6, "somebody has come since"
    mirror.on_abandon([1, 2, 3, 4, 5, 6], 0, 4.0, 5.0)
    assert len(mirror) == 0


def test_uses_are_told_apart_only_as_far_as_matters() -> None:
    """Prompts without blocks, and one prompt again and again: the log of uses stays short, answers still take room."""
    mirror = mirrored(room=1_000_000)
    for now in range(20_000):
        mirror.on_close([] if now % 2 else [1, 2], 10, 3, float(now))
    assert mirror.tokens == 20 + 3 * 20_000
    assert len(mirror._log) <= 2 * (COMPACT_FACTOR * 256 + COMPACT_MIN)
    mirror.room_tokens = 30_000
    mirror.trim(20_000.0)
    assert 30_000 - 1_000_000 / 256 <= mirror.tokens <= 30_000
    assert held(mirror, [1, 2]) == 2, "used last, pushed out last"


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=40), max_size=40))
def test_hashes_that_are_not_chained_do_no_harm(routed: list[list[int]]) -> None:
    """Whoever sends them finds less, or more, than there is; nobody else notices."""
    tree = PrefixTree()
    mirrors = [MirroredPrefixes(tree, row, 400, 40) for row in range(2)]
    for now, blocks in enumerate(routed):
        mirror = mirrors[now % 2]
        mirror.on_route(blocks, 10, now)
        (mirror.on_close if now % 3 else mirror.on_abandon)(blocks, 1, 7, now)
        mirror.trim(now)
        assert 0 <= mirror.tokens <= 400
        assert 0 <= len(mirror) <= 40
        assert all(0 < depth <= len(blocks) for _, depth in tree.match(blocks))
    for mirror in mirrors:
        mirror.clear()
        assert (len(mirror), mirror.tokens) == (0, 0)
    mirrors[0].on_route(CHAINS[0], 10, 100.0)
    assert held(mirrors[0], CHAINS[0]) == 9


class MirrorMachine(RuleBasedStateMachine):
    """Two mirrors of one tree, each against a naive LRU of whole blocks."""

    def __init__(self) -> None:
        super().__init__()
        tree = PrefixTree()
        self.mirrors = [MirroredPrefixes(tree, row, 400, 40) for row in range(2)]
        self.orders: list[list[tuple[int, int, float]]] = [[], []]
        """Block, tokens and last use, oldest first; answers have negative blocks."""
        self.now = 0.0
        self.answers = 0

    def _touch(self, row: int, blocks: list[int], answer: int) -> None:
        self.now += 1.0
        order = self.orders[row]
        if answer:
            self.answers -= 1
            order.append((self.answers, answer, self.now))
        for touched in reversed(blocks):
            order[:] = [entry for entry in order if entry[0] != touched]
            order.append((touched, 10, self.now))

    def _trim(self, row: int) -> None:
        order = self.orders[row]
        while sum(block >= 0 for block, _, _ in order) > 40 or sum(tokens for _, tokens, _ in order) > 400:
            order.pop(0)

    @rule(row=st.integers(0, 1), blocks=st.sampled_from(BRANCHES), answer=st.integers(0, 40))
    def serve(self, row: int, blocks: list[int], answer: int) -> None:
        self._touch(row, blocks, answer)
        self._trim(row)
        self.mirrors[row].on_close(blocks, 10, answer, self.now)

    @rule(row=st.integers(0, 1), blocks=st.sampled_from(BRANCHES))
    def route(self, row: int, blocks: list[int]) -> None:
        uses = {block: at for block, _, at in self.orders[row]}
        held = [uses[block] for block in blocks if block in uses]
        self._touch(row, blocks, 0)
        self._trim(row)
        before = self.mirrors[row].on_route(blocks, 10, self.now)
        assert before.blocks == len(held)
        assert 0 < before.last_used_at <= held[-1] if held else before.last_used_at == NEVER
        self.mirrors[row].trim(self.now)

    @rule(row=st.integers(0, 1))
    def rewrite(self, row: int) -> None:
        self.mirrors[row]._compact()

    @rule(row=st.integers(0, 1), back=st.integers(0, 6))
    def miss(self, row: int, back: int) -> None:
        self.orders[row] = [entry for entry in self.orders[row] if entry[2] > self.now - back]
        self.mirrors[row].on_miss(self.now - back)

    @rule(row=st.integers(0, 1))
    def clear(self, row: int) -> None:
        self.orders[row].clear()
        self.mirrors[row].clear()

    @invariant()
    def both_hold_the_same(self) -> None:
        known = [{block for block, _, _ in order if block >= 0} for order in self.orders]
        for mirror, order, mine in zip(self.mirrors, self.orders, known, strict=True):
            assert mirror.tokens == sum(tokens for _, tokens, _ in order)
            assert len(mirror) == len(mine)
        for chain in BRANCHES:
            for row, mine in enumerate(known):
                holding = [block in mine for block in chain]
                assert holding == sorted(holding, reverse=True), "what is held is whole prefixes"
                assert held(self.mirrors[row], chain, 1 << row) == sum(holding)
        if not any(known):
            assert len(self.mirrors[0]._tree) == 0


TestMirror = MirrorMachine.TestCase
TestMirror.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


class ExactMachine(RuleBasedStateMachine):
    """Two engines' events in any order, prompts on their way; against plain sets."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex()
        self.sources = [ExactPrefixes(self.index, 1 << row, 10_000, 100, grace_s=1.0) for row in range(2)]
        self.engines: list[set[int]] = [set(), set()]
        self.way: list[list[tuple[list[int], float | None]]] = [[], []]
        """Prompts on their way, and until when they are believed after their first token."""
        self.now = 0.0

    @rule(row=st.integers(0, 1), blocks=chains, some=st.integers(0, 9))
    def store(self, row: int, blocks: list[int], some: int) -> None:
        self.engines[row].update(blocks[some:])
        self.sources[row].apply(delta(stored=blocks[some:]))

    @rule(row=st.integers(0, 1), blocks=chains, some=st.integers(0, 9))
    def remove(self, row: int, blocks: list[int], some: int) -> None:
        self.engines[row].difference_update(blocks[some:])
        self.sources[row].apply(delta(removed=blocks[some:]))

    @rule(row=st.integers(0, 1), blocks=chains)
    def start_over(self, row: int, blocks: list[int]) -> None:
        self.engines[row] = set(blocks)
        self.sources[row].apply(delta(stored=blocks, cleared=True))

    @rule(row=st.integers(0, 1))
    def restart(self, row: int) -> None:
        self.engines[row].clear()
        self.way[row].clear()
        self.sources[row].clear()

    @rule(row=st.integers(0, 1), blocks=chains)
    def route(self, row: int, blocks: list[int]) -> None:
        self.way[row].append((blocks, None))
        assert self.sources[row].on_route(blocks, 16, self.now) == NOT_CACHED

    @rule(row=st.integers(0, 1), pick=st.randoms(use_true_random=False), served=st.booleans())
    def arrive(self, row: int, pick: random.Random, served: bool) -> None:
        waiting = [place for place, (_, until) in enumerate(self.way[row]) if until is None]
        if not waiting:
            return
        place = pick.choice(waiting)
        blocks = self.way[row][place][0]
        if served:
            self.way[row][place] = (blocks, self.now + 1.0)
            self.sources[row].on_prefill(blocks, self.now)
        else:
            del self.way[row][place]
            self.sources[row].on_abandon(blocks, 0, self.now, self.now)

    @rule(seconds=st.floats(0, 2))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for source in self.sources:
            source.trim(self.now)

    @invariant()
    def the_index_says_what_is_held_or_on_its_way(self) -> None:
        for row, source in enumerate(self.sources):
            source.trim(self.now)
            self.way[row] = [(b, until) for b, until in self.way[row] if until is None or until > self.now]
        known = [
            engine | {block for blocks, _ in way for block in blocks}
            for engine, way in zip(self.engines, self.way, strict=True)
        ]
        for chain in CHAINS:
            assert [held(source, chain, 1 << row) for row, source in enumerate(self.sources)] == naive(
                known, chain
            )
        assert len(self.index) == len(set.union(*known))


TestExact = ExactMachine.TestCase
TestExact.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)


def test_an_engine_that_tells_more_than_fits_is_cut_off() -> None:
    exact = ExactPrefixes(PrefixIndex(), 1, 10_000, 3, grace_s=0.1)
    exact.apply(delta(stored=[1, 2, 3, 4, 5]))
    assert (held(exact, [1, 2, 3, 4, 5]), len(exact)) == (3, 3)


@pytest.mark.parametrize("source", [mirrored(), ExactPrefixes(PrefixIndex(), 1, 100, 100, 0.1)])
def test_a_prompt_without_blocks_leaves_no_trace(source: MirroredPrefixes | ExactPrefixes) -> None:
    assert source.on_route([], 10, 0.0) == NOT_CACHED
    source.on_prefill([], 1.0)
    source.on_close([], 10, 0, 2.0)
    source.on_abandon([], 0, 3.0, 3.0)
    assert len(source) == 0


def test_little_held_is_left_out_when_so_asked() -> None:
    index, chain = PrefixIndex(), list(range(1, 21))
    for block in chain[:4]:
        index.add(block, 1)
    for block in chain[:12]:
        index.add(block, 2)
    assert index.match(chain) == [(1, 4), (2, 12)]
    assert index.match(chain, 5) == [(2, 12)]
    assert index.match(chain, 13) == []
