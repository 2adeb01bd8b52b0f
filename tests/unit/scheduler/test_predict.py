"""Predictions: the step model, a report that tells the truth."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.predict import BOUND_QUANTILE, MAX_PREFILL_SHARE, Accuracy, PrefillShare


def test_the_prefill_share_is_seconds_of_prefill_per_second() -> None:
    share = PrefillShare()
    for tick in range(1000):
        share.add(0.03, tick * 0.1)
    assert share.at(100.0) == pytest.approx(0.3, rel=0.02)
    assert share.at(200.0) < 1e-4
    share.add(1e6, 200.0)
    assert share.at(200.0) == MAX_PREFILL_SHARE


@given(st.floats(0.5, 2.0), st.floats(0.05, 0.8), st.integers(0, 100))
def test_the_bound_covers_what_it_says(bias: float, spread: float, seed: int) -> None:
    rng, accuracy = random.Random(seed), Accuracy()
    within = 0
    for step in range(3000):
        predicted = rng.uniform(0.1, 2.0)
        observed = predicted * bias * math.exp(rng.gauss(0.0, spread))
        within += step >= 1000 and observed <= accuracy.bound(predicted)
        accuracy.learn(predicted, observed)
    if bias * math.exp(1.3 * spread) > 1.0:  # the bound is never below the prediction itself
        assert within / 2000 == pytest.approx(BOUND_QUANTILE, abs=0.05)
    else:
        assert within / 2000 >= BOUND_QUANTILE - 0.05


def test_the_report_is_the_error() -> None:
    accuracy = Accuracy()
    for _ in range(500):
        accuracy.learn(0.5, 1.0)
    assert accuracy.mape == pytest.approx(0.5)
    assert accuracy.bias_s == pytest.approx(0.5)
    assert accuracy.count == 500
