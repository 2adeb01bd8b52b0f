"""Estimates of tokens: learned per tenant and model, in bounded memory."""

import pytest

from gateway import estimate
from gateway.estimate import Estimator


def test_estimates_learn() -> None:
    estimator = Estimator()
    for _ in range(200):
        estimator.learn("t", "m", 1000, 500, 40, 2)
    input_tokens, output_tokens = estimator.estimate("t", "m", 1000, 0, 1)
    assert 480 <= input_tokens <= 501
    assert 19 <= output_tokens <= 22
    assert estimator.estimate("t", "m", 1000, 4, 3)[1] == 12
    assert estimator.estimate("t", "other", 0, 16, 1) == (1, 16)


def test_one_tenants_answers_change_no_other_tenants_estimates() -> None:
    estimator = Estimator()
    before = estimator.estimate("quiet", "m", 1000, 0, 1)
    for _ in range(100):
        estimator.learn("loud", "m", 1000, 1000, 100_000, 1)
    assert estimator.estimate("loud", "m", 1000, 0, 1)[1] > 90_000
    assert estimator.estimate("quiet", "m", 1000, 0, 1) == before


def test_the_first_requests_of_a_tenant_count_most() -> None:
    estimator = Estimator()
    for _ in range(12):
        estimator.learn("t", "m", 1000, 250, 1000, 1)
    assert estimator.estimate("t", "m", 1000, 0, 1)[1] > 800


def test_memory_is_bounded_and_the_pairs_in_use_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "MAX_ENTRIES", 50)
    estimator = Estimator()
    for number in range(1000):
        estimator.learn("regular", "m", 1000, 250, 1000, 1)
        estimator.learn(f"t{number}", "m", 1000, 250, 1000, 1)
    assert len(estimator) == 50
    assert estimator.estimate("regular", "m", 1000, 0, 1)[1] > 990
