"""The identity of reconciliation adds up whatever it is given, and never explains more than rows allow."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from billing.economics.token_balance import CAUSES, Used, explain

COUNTS = st.integers(0, 10**12)
USED = st.builds(Used, **{name: COUNTS for name in Used.__struct_fields__})


@given(COUNTS, USED)
def test_the_lines_add_up(engine: int, used: Used) -> None:
    lines = explain(engine, used)
    assert lines.engine + lines.unobserved == sum(getattr(lines, name) for name in CAUSES) + lines.unexplained
    assert 0 <= lines.unobserved <= used.unseen_limit
    assert 0 <= lines.cancelled_tail - used.cancelled_tail <= used.cut_limit
    assert 0 <= lines.engine_failed - used.engine_failed <= used.failed_limit


@given(USED)
def test_a_healthy_engine_leaves_nothing(used: Used) -> None:
    exact = sum(getattr(used, name) for name in CAUSES)
    lines = explain(exact, used)
    assert (lines.unexplained, lines.unobserved) == (0, 0)


@given(USED, st.integers(1, 10**6))
def test_a_loss_beyond_every_tail_is_told_in_full(used: Used, lost: int) -> None:
    exact = sum(getattr(used, name) for name in CAUSES)
    reach = used.cut_limit + used.failed_limit
    assert explain(exact + reach + lost, used).unexplained == lost
    alive = msgspec.structs.replace(used, unseen_limit=0)
    assert explain(max(exact - lost, 0), alive).unexplained == max(exact - lost, 0) - exact
