"""What a step costs: larger batches yield more, speculation keeps its mean."""

import random
import statistics
from itertools import pairwise

import pytest

from sim.engine.step_model.cost import (
    Speculation,
    StepCost,
    acceptance_probability,
    noise,
)
from workers.catalog import load_catalog
from workers.wire import Capacity

PROFILES = [(model.name, profile) for model in load_catalog().models.values() for profile in model.profiles]


def capacity(model: str, profile: str = "") -> Capacity:
    return load_catalog().model(model).profile(profile).capacity


@pytest.mark.parametrize(("model", "profile"), PROFILES)
def test_a_larger_batch_is_slower_but_yields_more(model: str, profile: str) -> None:
    figures = capacity(model, profile)
    cost = StepCost(figures)
    times = [cost.base(batch) for batch in range(figures.max_num_seqs + 1)]
    assert all(earlier <= later for earlier, later in pairwise(times))
    rates = [batch / times[batch] for batch in range(1, len(times))]
    assert rates[-1] == pytest.approx(max(rates), rel=0.05)


@pytest.mark.parametrize(("mean", "drafts"), [(1.9, 1), (2.0, 3), (2.4, 3), (1.0, 0), (3.0, 2)])
def test_steps_of_an_answer_have_the_mean_of_the_acceptance(mean: float, drafts: int) -> None:
    p = acceptance_probability(mean, drafts)
    assert sum(p**power for power in range(drafts + 1)) == pytest.approx(mean)
    speculation, rng = Speculation(mean, drafts), random.Random(5)

    def exact(tokens: int) -> int:
        steps = 0
        while tokens > 0:
            accepted = 0
            while accepted < drafts and rng.random() < p:
                accepted += 1
            tokens -= 1 + accepted
            steps += 1
        return steps

    drawn = [speculation.steps(200, rng) for _ in range(3000)]
    plain = [exact(200) for _ in range(3000)]
    assert statistics.fmean(drawn) == pytest.approx(statistics.fmean(plain), rel=0.01)
    assert statistics.pstdev(drawn) == pytest.approx(statistics.pstdev(plain), rel=0.1, abs=0.6)
    assert all(speculation.steps(tokens, rng) in range(1, tokens + 1) for tokens in range(1, 50))


def test_noise_has_mean_one_and_averages_out_over_steps() -> None:
    rng = random.Random(3)
    one = [noise(0.1, 1, rng) for _ in range(4000)]
    hundred = [noise(0.1, 100, rng) for _ in range(4000)]
    assert statistics.fmean(one) == pytest.approx(1, abs=0.01)
    assert statistics.pstdev(one) == pytest.approx(0.1, rel=0.1)
    assert statistics.pstdev(hundred) == pytest.approx(0.01, rel=0.1)
    assert noise(0, 1, rng) == 1
