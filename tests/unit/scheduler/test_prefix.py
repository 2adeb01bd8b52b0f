"""The prefix mirror: matches, forgets, never grows without bound."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.prefix import PrefixMirror

prompts = st.lists(
    st.tuples(st.lists(st.integers(0, 60), min_size=1, max_size=12, unique=True), st.integers(0, 3000)),
    max_size=60,
)


@given(prompts, st.integers(1, 5000), st.integers(1, 30))
def test_it_stays_within_its_room(routed: list[tuple[list[int], int]], room: int, blocks: int) -> None:
    mirror = PrefixMirror(room, blocks)
    for prompt, tokens in routed:
        mirror.remember(prompt, tokens)
        assert len(mirror) <= blocks
        assert mirror.tokens <= room
        assert mirror.tokens >= len(mirror)
        assert 0 <= mirror.match(prompt) <= len(prompt)


@given(st.lists(st.integers(), min_size=1, max_size=40, unique=True))
def test_a_prompt_that_fits_is_matched_whole(prompt: list[int]) -> None:
    mirror = PrefixMirror(10_000)
    mirror.remember(prompt, 100)
    assert mirror.match(prompt) == len(prompt)
    assert mirror.match([*prompt, -1]) >= len(prompt)


def test_leaves_are_forgotten_before_their_prefix() -> None:
    mirror = PrefixMirror(400)
    mirror.remember([1, 2, 3, 4], 400)
    mirror.remember([9, 8], 200)
    assert mirror.match([1, 2, 3, 4]) == 2
    assert mirror.match([9, 8]) == 2
    mirror.clear()
    assert (mirror.match([9]), len(mirror), mirror.tokens) == (0, 0, 0)
