"""The token balance adds up for any input, and never explains more than the rows allow."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from billing.economics.token_balance import CAUSES, KnownTokens, balance_tokens

COUNTS = st.integers(0, 10**12)
USED = st.builds(KnownTokens, **{name: COUNTS for name in KnownTokens.__struct_fields__})


@given(COUNTS, USED)
def test_the_lines_add_up(engine: int, used: KnownTokens) -> None:
    lines = balance_tokens(engine, used)
    assert lines.engine + lines.unobserved == sum(getattr(lines, name) for name in CAUSES) + lines.unexplained
    assert 0 <= lines.unobserved <= used.unscraped_limit
    assert 0 <= lines.cancelled_tail - used.cancelled_tail <= used.cancelled_limit
    assert 0 <= lines.engine_failed - used.engine_failed <= used.failed_limit


@given(USED)
def test_a_healthy_engine_leaves_nothing(used: KnownTokens) -> None:
    exact = sum(getattr(used, name) for name in CAUSES)
    lines = balance_tokens(exact, used)
    assert (lines.unexplained, lines.unobserved) == (0, 0)


@given(USED, st.integers(1, 10**6))
def test_a_loss_beyond_every_tail_is_unexplained_in_full(used: KnownTokens, lost: int) -> None:
    exact = sum(getattr(used, name) for name in CAUSES)
    reach = used.cancelled_limit + used.failed_limit
    assert balance_tokens(exact + reach + lost, used).unexplained == lost
    alive = msgspec.structs.replace(used, unscraped_limit=0)
    assert balance_tokens(max(exact - lost, 0), alive).unexplained == max(exact - lost, 0) - exact
