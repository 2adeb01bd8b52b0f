"""The estimator of a replica's speed: it converges from figures that are wrong, and stays within bounds."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.capacity_estimate import LIMIT, CapacityEstimate, Factors, Parts
from workers.wire import Capacity

STATED = Capacity(
    7000.0, 0.0166, 0.00019, request_s=0.02, step_experts_s=0.004, expert_share=0.1, prefill_pair_s=1e-9
)
WRONG = [
    Factors(3.0, 3.0, 3.0, 1.0), Factors(1 / 3, 1 / 3, 1 / 3, 1.0), Factors(3.0, 1.0, 1.0, 1.0),
    Factors(1 / 3, 1.0, 1.0, 1.0), Factors(1.0, 3.0, 1.0, 1.0), Factors(1.0, 1.0, 3.0, 1.0),
    Factors(1.0, 3.0, 1 / 3, 1.0), Factors(1.0, 1 / 3, 3.0, 1.0),
]  # fmt: skip
"""True over stated seconds."""


def play(
    estimate: CapacityEstimate, true: Factors, turns: int, rng: random.Random, *, outliers: float = 0.0
) -> None:
    """`turns` answers and as many first tokens of an engine under varying load, 10 % noise and some `outliers`."""
    for _ in range(turns):
        batch, steps = rng.randint(1, 60), 200
        base, sequences = steps * STATED.step_base_s, steps * STATED.step_per_seq_s * batch
        answer = Parts(rng.uniform(0.0, base), base, sequences)
        prompt_s = rng.uniform(100, 4000) / STATED.prefill_tokens_per_s
        first = Parts(prompt_s, 1.5 * base / steps, 1.5 * sequences / steps, STATED.request_s)
        for parts in (answer, first):
            observed = true_s(parts, true) * math.exp(rng.gauss(0.0, 0.1))
            if rng.random() < outliers:
                observed *= rng.choice((0.05, 20.0))
            estimate.observe(parts, observed)


def true_s(parts: Parts, true: Factors) -> float:
    return parts.fixed + sum(part * factor for part, factor in zip(parts, true, strict=False))


def believed_s(estimate: CapacityEstimate, parts: Parts) -> float:
    return true_s(parts, estimate.factors)


STEP = Parts(0.0, STATED.step_base_s, 30 * STATED.step_per_seq_s)
PROMPT = Parts(1.0, 0.0, 0.0)


@pytest.mark.parametrize("true", WRONG)
def test_a_speed_counts_as_learnt_once_answers_have_shown_it(true: Factors) -> None:
    for seed in range(5):
        estimate, answers = CapacityEstimate(), 0
        while not estimate.is_learnt:
            play(estimate, true, 1, random.Random(seed * 1_000 + answers))
            answers += 1
        assert 5 <= answers <= 100
        for parts in (STEP, PROMPT):
            assert believed_s(estimate, parts) == pytest.approx(true_s(parts, true), rel=0.4)


@pytest.mark.parametrize("true", WRONG)
@pytest.mark.parametrize("outliers", [0.0, 0.1])
def test_figures_wrong_by_three_are_right_after_sixty_answers(true: Factors, outliers: float) -> None:
    for seed in range(5):
        estimate = CapacityEstimate()
        play(estimate, true, 60, random.Random(seed), outliers=outliers)
        for parts in (STEP, PROMPT):
            assert believed_s(estimate, parts) == pytest.approx(true_s(parts, true), rel=0.4)


def test_alpha_and_beta_are_told_apart_by_batches_of_several_sizes() -> None:
    estimate = CapacityEstimate()
    play(estimate, Factors(1.0, 1.0, 3.0, 1.0), 400, random.Random(1))
    assert estimate.factors.sequences == pytest.approx(3.0, rel=0.3)
    assert estimate.factors.base == pytest.approx(1.0, rel=0.3)
    assert estimate.spreads.sequences < 0.3


def test_an_engine_that_becomes_slower_is_believed_to_be_slower() -> None:
    rng, estimate = random.Random(1), CapacityEstimate()
    play(estimate, Factors(1.0, 1.0, 1.0, 1.0), 1000, rng)
    play(estimate, Factors(3.0, 3.0, 3.0, 1.0), 150, rng)
    for parts in (STEP, PROMPT):
        assert believed_s(estimate, parts) == pytest.approx(3.0 * true_s(parts, Factors(1, 1, 1, 1)), rel=0.3)


def test_what_no_observation_tells_about_stays_as_stated() -> None:
    estimate = CapacityEstimate()
    for _ in range(100):
        estimate.observe(Parts(0.5, 0.0, 0.0), 1.0)
    prefill, *others = estimate.factors
    assert prefill == pytest.approx(2.0, rel=0.05)
    assert others == [1.0, 1.0, 1.0]


def test_one_outlier_moves_a_settled_estimate_by_little() -> None:
    estimate = CapacityEstimate()
    play(estimate, Factors(1.0, 1.0, 1.0, 1.0), 200, random.Random(1))
    before = believed_s(estimate, STEP)
    estimate.observe(STEP, 1e6)
    assert believed_s(estimate, STEP) == pytest.approx(before, rel=0.15)


SECONDS = st.floats(0.0, 1e6, allow_nan=False)
OBSERVATIONS = st.lists(
    st.tuples(st.builds(Parts, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS), st.floats(-1.0, 1e12)),
    max_size=60,
)


@given(OBSERVATIONS)
@settings(max_examples=200)
def test_whatever_is_observed_it_is_bounded_and_repeatable(observations: list[tuple[Parts, float]]) -> None:
    twins = CapacityEstimate(), CapacityEstimate()
    for parts, observed_s in observations:
        for estimate in twins:
            estimate.observe(parts, observed_s)
    one, other = twins
    assert one.factors == other.factors
    assert all(math.exp(-LIMIT) * 0.999 <= factor <= math.exp(LIMIT) * 1.001 for factor in one.factors)
    assert all(math.isfinite(spread) for spread in one.spreads)
    learnt = one.apply(STATED)
    assert (
        STATED.prefill_tokens_per_s / 10.01
        <= learnt.prefill_tokens_per_s
        <= 10.01 * STATED.prefill_tokens_per_s
    )


def test_an_assumed_figure_may_be_wrong_by_a_hundred() -> None:
    estimate = CapacityEstimate(assumed=True)
    play(estimate, Factors(0.1, 0.01, 0.01, 1.0), 20, random.Random(1))
    assert believed_s(estimate, STEP) == pytest.approx(0.01 * true_s(STEP, Factors(1, 1, 1, 1)), rel=0.5)


def test_believed_figures_are_the_stated_ones_with_their_factors() -> None:
    estimate = CapacityEstimate()
    assert estimate.apply(STATED) is STATED
    play(estimate, WRONG[0], 50, random.Random(1))
    learnt, factors = estimate.apply(STATED), estimate.factors
    assert learnt.prefill_tokens_per_s == STATED.prefill_tokens_per_s / factors.prefill
    assert learnt.prefill_pair_s == STATED.prefill_pair_s * factors.prefill
    assert learnt.step_base_s == STATED.step_base_s * factors.base
    assert learnt.step_experts_s == STATED.step_experts_s * factors.base
    assert learnt.step_per_seq_s == STATED.step_per_seq_s * factors.sequences
    assert learnt.request_s == STATED.request_s * factors.overhead
    another = CapacityEstimate()
    another.inherit(estimate)
    assert another.apply(STATED) == learnt
    assert another.count == 0
