"""The prefix index and both sources of what is in it, against models too naive to be wrong."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from scheduler.core.prefix import OVERFILL, Exact, Mirrored
from scheduler.core.prefix_index import FINE_DEPTH, MARKS_PER_DOUBLING, MAX_DEPTH, RULER, PrefixIndex, marks
from workers.wire import KvDelta

NEVER = float("-inf")
CHAINS = [[10 * root + depth + 1 for depth in range(9)] for root in range(3)]
"""Three chains of nine blocks; prefixes of them are the prompts of the machines."""

prompts = st.lists(
    st.tuples(st.lists(st.integers(0, 60), min_size=1, max_size=12, unique=True), st.integers(0, 300)),
    max_size=60,
)
chains = st.tuples(st.integers(0, 2), st.integers(1, 9)).map(lambda drawn: CHAINS[drawn[0]][: drawn[1]])


def mirrored(room: int = 100_000, most: int = 1000) -> Mirrored:
    return Mirrored(PrefixIndex(), 1, room, most)


def held(source: Mirrored | Exact, blocks: list[int], bit: int = 1) -> int:
    """Leading blocks that the index gives to the replica `bit`."""
    return next((depth for bits, depth in source._index.match(blocks) if bits & bit), 0)


def delta(
    stored: list[int] | None = None, removed: list[int] | None = None, *, cleared: bool = False
) -> KvDelta:
    return KvDelta("host/r0", "boot-1", 1, stored or [], removed or [], cleared)


@given(st.integers(1, 5000))
def test_marks_reach_from_the_first_block_to_the_last(length: int) -> None:
    hashes, depths = marks(range(1, length + 1))
    assert hashes == depths
    assert depths[0] == 1
    assert depths[-1] == min(length, MAX_DEPTH)
    assert len(depths) <= len(RULER) + 1
    for lower, upper in pairwise(depths):
        assert 1 <= upper - lower <= max(1, lower // MARKS_PER_DOUBLING)


def test_the_ruler_is_fine_where_prompts_are_short() -> None:
    assert RULER[:FINE_DEPTH] == tuple(range(1, FINE_DEPTH + 1))
    assert RULER[-1] == MAX_DEPTH


def naive(owned: list[set[int]], blocks: list[int]) -> list[int]:
    """Leading marked blocks that each replica holds, without a hole among them."""
    hashes, depths = marks(blocks)
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
    index, owned = PrefixIndex(), [set() for _ in range(70)]
    chain = [rng.getrandbits(64) for _ in range(length)]
    for row, mine in enumerate(owned):
        for block in marks(chain[: rng.randrange(length + 1)])[0]:
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
        mirror.routed(prompt, tokens, now)
        assert len(mirror) <= OVERFILL * most
        assert mirror.tokens <= OVERFILL * room
        mirror.ended(prompt, tokens, 7, now)
        assert len(mirror) <= most
        assert 0 <= mirror.tokens <= room
    mirror.clear()
    assert (len(mirror), mirror.tokens, len(mirror._index)) == (0, 0, 0)


@given(st.lists(st.integers(0), min_size=1, max_size=200, unique=True))
def test_a_prompt_that_fits_is_matched_whole(prompt: list[int]) -> None:
    mirror = mirrored()
    mirror.routed(prompt, 10, 0.0)
    assert held(mirror, prompt) == len(prompt)
    if len(prompt) <= FINE_DEPTH:
        assert held(mirror, [*prompt, -1]) == len(prompt)


def test_leaves_are_forgotten_before_their_prefix() -> None:
    mirror = mirrored(room=400)
    mirror.ended([1, 2, 3, 4], 100, 0, 0.0)
    mirror.ended([9, 8], 100, 0, 1.0)
    assert (held(mirror, [1, 2, 3, 4]), held(mirror, [9, 8])) == (2, 2)


def test_answers_take_room_too() -> None:
    mirror = mirrored(room=400)
    mirror.ended([1, 2, 3], 100, 250, 0.0)
    assert (held(mirror, [1, 2, 3]), mirror.tokens) == (3, 300)
    mirror.ended([1, 2, 3], 100, 50, 1.0)
    assert mirror.tokens == 350


def test_what_a_full_engine_has_lost_takes_all_that_is_older_with_it() -> None:
    mirror = mirrored()
    for now, prompt in enumerate(([1, 2], [3, 4], [5, 6])):
        assert mirror.routed(prompt, 10, float(now)) == NEVER
    used_at = mirror.routed([3, 4], 10, 10.0)
    assert used_at == 1.0
    mirror.missed(used_at)
    assert [held(mirror, prompt) for prompt in ([1, 2], [3, 4], [5, 6])] == [0, 2, 2]


def test_a_prompt_given_up_before_its_prefill_leaves_what_was_cached_before() -> None:
    mirror = mirrored()
    mirror.ended([1, 2], 10, 0, 0.0)
    mirror.routed([1, 2, 3, 4], 10, 1.0)
    mirror.given_up([1, 2, 3, 4], 20, 10, 2.0)
    assert held(mirror, [1, 2, 3, 4]) == 2


class MirrorMachine(RuleBasedStateMachine):
    """A mirror and a naive LRU of whole blocks, whose prompts begin alike."""

    def __init__(self) -> None:
        super().__init__()
        self.mirror = mirrored(room=150, most=12)
        self.order: list[tuple[int, int]] = []
        """Block and tokens, oldest first."""
        self.now = 0.0
        self.answers = 0

    def _touch(self, blocks: list[int]) -> None:
        self.now += 1.0
        for block in reversed(blocks):
            self.order = [entry for entry in self.order if entry[0] != block]
            self.order.append((block, 10))

    @rule(blocks=chains, answer=st.integers(0, 40))
    def serve(self, blocks: list[int], answer: int) -> None:
        if answer:
            self.answers -= 1
            self.order.append((self.answers, answer))
        self._touch(blocks)
        while (
            sum(block >= 0 for block, _ in self.order) > 12 or sum(tokens for _, tokens in self.order) > 150
        ):
            self.order.pop(0)
        self.mirror.ended(blocks, 10, answer, self.now)

    @rule()
    def clear(self) -> None:
        self.order.clear()
        self.mirror.clear()

    @invariant()
    def both_hold_the_same(self) -> None:
        known = {block for block, _ in self.order if block >= 0}
        assert self.mirror.tokens == sum(tokens for _, tokens in self.order)
        assert len(self.mirror) == len(known)
        for chain in CHAINS:
            assert held(self.mirror, chain) == naive([known], chain)[0]
            holes = [block in known for block in chain]
            assert holes == sorted(holes, reverse=True), "what is held is whole prefixes"


TestMirror = MirrorMachine.TestCase
TestMirror.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)


class ExactMachine(RuleBasedStateMachine):
    """Two engines' events in any order, prompts on their way; against plain sets."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex()
        self.sources = [Exact(self.index, 1 << row, 10_000, 100, grace_s=1.0) for row in range(2)]
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
        assert self.sources[row].routed(blocks, 16, self.now) == NEVER

    @rule(row=st.integers(0, 1), pick=st.randoms(use_true_random=False), served=st.booleans())
    def arrive(self, row: int, pick: random.Random, served: bool) -> None:
        waiting = [place for place, (_, until) in enumerate(self.way[row]) if until is None]
        if not waiting:
            return
        place = pick.choice(waiting)
        blocks = self.way[row][place][0]
        if served:
            self.way[row][place] = (blocks, self.now + 1.0)
            self.sources[row].prefilled(blocks, self.now)
        else:
            del self.way[row][place]
            self.sources[row].given_up(blocks, 0, 16, self.now)

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
    exact = Exact(PrefixIndex(), 1, 10_000, 3, grace_s=0.1)
    exact.apply(delta(stored=[1, 2, 3, 4, 5]))
    assert (held(exact, [1, 2, 3, 4, 5]), exact.dropped, len(exact)) == (3, 2, 3)


@pytest.mark.parametrize("source", [mirrored(), Exact(PrefixIndex(), 1, 100, 100, 0.1)])
def test_a_prompt_without_blocks_leaves_no_trace(source: Mirrored | Exact) -> None:
    assert source.routed([], 10, 0.0) == NEVER
    source.prefilled([], 1.0)
    source.ended([], 10, 0, 2.0)
    source.given_up([], 0, 10, 3.0)
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
