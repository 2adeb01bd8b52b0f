"""Intervals against values from tables and textbooks."""

import math
import random

import pytest

from sim.pool.stats import Interval, interval, paired, t_quantile


@pytest.mark.parametrize(
    ("freedom", "value"),
    [(1, 12.706), (4, 2.776), (9, 2.262), (30, 2.042), (40, 2.021), (60, 2.000), (120, 1.980)],
)
def test_quantiles_of_students_t(freedom: int, value: float) -> None:
    assert t_quantile(freedom) == pytest.approx(value, abs=6e-4)


def test_interval_of_a_known_sample() -> None:
    known = interval([4.0, 5.0, 6.0, 7.0, 8.0])
    assert known.mean == 6.0
    assert known.half == pytest.approx(2.7764 * math.sqrt(2.5 / 5))
    assert (known.low, known.high) == (known.mean - known.half, known.mean + known.half)


def test_one_value_says_nothing_of_its_spread() -> None:
    assert interval([3.0]) == Interval(3.0, math.inf, 1)
    with pytest.raises(ValueError, match="no values"):
        interval([])


def test_intervals_cover_the_mean_nineteen_times_of_twenty() -> None:
    rng = random.Random(3)
    covered = 0
    for _ in range(2000):
        known = interval([rng.gauss(10.0, 2.0) for _ in range(10)])
        covered += known.low <= 10.0 <= known.high
    assert 0.935 <= covered / 2000 <= 0.965


def test_pairing_finds_what_the_spread_of_seeds_hides() -> None:
    rng = random.Random(4)
    seeds = [rng.gauss(100.0, 30.0) for _ in range(10)]
    ours, theirs = [each + 1.0 + rng.gauss(0, 0.2) for each in seeds], seeds
    assert interval(ours).low < interval(theirs).mean
    assert paired(ours, theirs).verdict == "better"
    assert paired(theirs, ours).verdict == "worse"
    assert paired(seeds, list(seeds)).verdict == "same"
    with pytest.raises(ValueError, match=r"shorter|longer"):
        paired([1.0], [1.0, 2.0])
