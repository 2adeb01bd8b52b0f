"""Counts of tokens over several choices."""

import sys
from collections.abc import Callable
from types import FrameType

from hypothesis import given
from hypothesis import strategies as st

from gateway.usage import EngineUsage, UsageTracker


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), max_size=60))
def test_the_output_is_the_sum_of_what_each_choice_has_reached(events: list[tuple[int, int]]) -> None:
    tracker, most = UsageTracker(4), dict.fromkeys(range(4), 0)
    for choice, output in events:
        usage = EngineUsage(prompt_tokens=5, completion_tokens=output)
        most[choice] = max(most[choice], output)
        assert tracker.output_after(usage, choice) == sum(most.values())
        tracker.update_choice(usage, choice)
        assert tracker.output == sum(most.values())


def test_an_event_costs_the_same_with_many_choices() -> None:
    def steps(choices: int) -> int:
        """Python calls, generator steps included, that one more event takes once every choice has begun."""
        tracker = UsageTracker(choices)
        for choice in range(choices):
            tracker.update_choice(EngineUsage(5, 1), choice)
        return _calls(
            lambda: (tracker.output_after(EngineUsage(5, 2), 0), tracker.update_choice(EngineUsage(5, 2), 0))
        )

    assert steps(2) == steps(128)


def _calls(act: Callable[[], object]) -> int:
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        del frame, argument
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(before)
    return count
