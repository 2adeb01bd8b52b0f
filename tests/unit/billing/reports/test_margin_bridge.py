"""The margin bridge adds up for any two periods, and each effect follows only from its own cause."""

from fractions import Fraction

from hypothesis import assume, given
from hypothesis import strategies as st

from billing.economics.weights import Coefficients
from billing.reports.margin_bridge import EFFECTS, Period, Quantities, Segment, bridge

COUNT = st.integers(0, 10**9)
PRICE = st.integers(0, 10**7)
KEYS = ("a/m", "b/m", "a/n")


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    tokens = Quantities(draw(COUNT), draw(COUNT), draw(COUNT))
    prices = [draw(PRICE) for _ in range(3)]
    revenue = Quantities(tokens.uncached * prices[0], tokens.cached * prices[1], tokens.output * prices[2])
    return Segment(tokens, revenue)


PERIODS = st.builds(
    Period[str],
    segments=st.dictionaries(st.sampled_from(KEYS), segments()),
    gpu_cost=st.integers(0, 10**18),
    machine_us=st.integers(0, 10**12),
)
WEIGHTS = st.fixed_dictionaries(
    {key: st.builds(Coefficients, uncached=COUNT, cached=COUNT, output=COUNT) for key in KEYS}
)


@given(PERIODS, PERIODS, WEIGHTS)
def test_the_effects_add_up_to_the_difference(
    before: Period[str], after: Period[str], weights: dict[str, Coefficients]
) -> None:
    made = bridge(before, after, weights)
    assert made.before == before.revenue - before.gpu_cost
    assert made.after == after.revenue - after.gpu_cost
    assert tuple(made.effects) == EFFECTS
    assert sum(made.effects.values()) == made.after - made.before


@given(PERIODS, WEIGHTS)
def test_nothing_changed_nothing_moves(period: Period[str], weights: dict[str, Coefficients]) -> None:
    assume(period.machine_us or not period.gpu_cost)  # a cost implies time
    assert set(bridge(period, period, weights).effects.values()) == {0}


WEIGHT = {key: Coefficients(uncached=100, cached=10, output=2000) for key in KEYS}


def period(
    *rows: tuple[str, int, int, int], prices: tuple[int, int, int] = (10, 1, 40), cost: int, us: int
) -> Period[str]:
    made = {
        key: Segment(Quantities(u, c, o), Quantities(u * prices[0], c * prices[1], o * prices[2]))
        for key, u, c, o in rows
    }
    return Period(made, cost, us)


BASE = period(("a/m", 1000, 500, 200), ("b/m", 400, 0, 800), cost=9000, us=600)


def moved(after: Period[str]) -> dict[str, int]:
    return {name: amount for name, amount in bridge(BASE, after, WEIGHT).effects.items() if amount}


def test_twice_of_everything_is_volume() -> None:
    after = period(("a/m", 2000, 1000, 400), ("b/m", 800, 0, 1600), cost=18000, us=1200)
    assert moved(after) == {"volume": BASE.revenue - 9000}


def test_dearer_tokens_are_price() -> None:
    after = period(("a/m", 1000, 500, 200), ("b/m", 400, 0, 800), prices=(11, 1, 44), cost=9000, us=600)
    assert moved(after) == {"price": after.revenue - BASE.revenue}


def test_dearer_gpus_are_gpu_price() -> None:
    assert moved(period(("a/m", 1000, 500, 200), ("b/m", 400, 0, 800), cost=9900, us=600)) == {
        "gpu_price": -900
    }


def test_more_idle_gpus_are_utilisation() -> None:
    assert moved(period(("a/m", 1000, 500, 200), ("b/m", 400, 0, 800), cost=18000, us=1200)) == {
        "utilisation": -9000
    }


def test_the_same_tokens_on_other_shoulders_are_mix() -> None:
    after = period(("a/m", 400, 0, 800), ("b/m", 1000, 500, 200), cost=9000, us=600)
    assert set(moved(after)) <= {"mix", "cache", "utilisation"}
    assert sum(moved(after).values()) == 0


def test_a_warmer_cache_costs_revenue_and_saves_gpu_time() -> None:
    after = period(("a/m", 500, 1000, 200), ("b/m", 400, 0, 800), cost=9000, us=600)
    effects = moved(after)
    assert set(effects) == {"cache", "utilisation"}
    lost = 500 * 10 - 500 * 1
    saved = Fraction(9000 * 500 * 90, 1000 * 100 + 500 * 10 + 200 * 2000 + 400 * 100 + 800 * 2000)
    assert abs(effects["cache"] - (saved - lost)) <= 1


def test_from_nothing_all_is_volume_and_price_of_gpus() -> None:
    made = bridge(Period({}, 0, 0), BASE, WEIGHT)
    assert sum(made.effects.values()) == BASE.revenue - 9000
    assert made.effects["volume"] == BASE.revenue
    assert made.effects["utilisation"] == -9000
