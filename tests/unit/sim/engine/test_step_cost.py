"""What a step costs: the published anchors come out, experts bend the line, speculation keeps its mean."""

import random
import statistics
from itertools import pairwise

import pytest

from sim.engine.step_model.cost import (
    Speculation,
    StepCost,
    acceptance_probability,
    drafts_of,
    experts_touched,
    noise,
    weights_seconds,
)
from workers.catalog import load_catalog
from workers.wire import Capacity, Roofline

PROFILES = [(model.name, profile) for model in load_catalog().models.values() for profile in model.profiles]


def capacity(model: str, profile: str = "") -> Capacity:
    return load_catalog().model(model).profile(profile).capacity


def test_the_published_sweep_of_a_dense_model_comes_out() -> None:
    cost = StepCost(capacity("llama-3.3-70b", "tp2"))
    for batch in (1, 16, 64, 256):
        assert cost.seconds(batch, 0, 0) == pytest.approx(0.0166 + 0.000188 * batch)


def test_published_throughputs_come_out_of_mixtures_of_experts() -> None:
    deepseek, minimax = capacity("deepseek-v3.2", "tp8"), capacity("minimax-m2.5", "tp4")
    assert deepseek.accept_per_step / StepCost(deepseek).base(1) == pytest.approx(234, rel=0.06)
    assert 256 * deepseek.accept_per_step / StepCost(deepseek).base(256) == pytest.approx(4370, rel=0.03)
    assert 256 * minimax.accept_per_step / StepCost(minimax).base(256) == pytest.approx(8838, rel=0.03)


@pytest.mark.parametrize(("model", "profile"), PROFILES)
def test_a_larger_batch_is_slower_but_yields_more(model: str, profile: str) -> None:
    figures = capacity(model, profile)
    cost = StepCost(figures)
    times = [cost.base(batch) for batch in range(figures.max_num_seqs + 1)]
    assert all(earlier <= later for earlier, later in pairwise(times))
    rates = [batch / times[batch] for batch in range(1, len(times))]
    assert rates[-1] == pytest.approx(max(rates), rel=0.05)


def test_a_step_is_never_faster_than_reading_its_weights() -> None:
    figures = Capacity(1e6, 0.001, 1e-5, max_num_seqs=64, roofline=Roofline(0.002, 0.01, 64, 2))
    cost = StepCost(figures)
    for batch in range(1, 65):
        assert cost.base(batch) >= weights_seconds(Roofline(0.002, 0.01, 64, 2), batch)


def test_share_of_experts_that_a_batch_touches() -> None:
    assert experts_touched(256, 8, 0) == 0
    assert experts_touched(256, 8, 1) == pytest.approx(8 / 256)
    assert experts_touched(256, 8, 2) == pytest.approx(1 - (248 / 256) ** 2)
    assert experts_touched(256, 8, 1000) == pytest.approx(1, abs=1e-6)


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


def test_drafts_follow_from_the_profile_or_from_the_mean() -> None:
    assert drafts_of(capacity("minimax-m2.5", "tp4")) == 3
    assert drafts_of(capacity("llama-3.3-70b", "tp2")) == 0
    assert drafts_of(Capacity(1, 1, 1, accept_per_step=1.9)) == 1


def test_noise_has_mean_one_and_averages_out_over_steps() -> None:
    rng = random.Random(3)
    one = [noise(0.1, 1, rng) for _ in range(4000)]
    hundred = [noise(0.1, 100, rng) for _ in range(4000)]
    assert statistics.fmean(one) == pytest.approx(1, abs=0.01)
    assert statistics.pstdev(one) == pytest.approx(0.1, rel=0.1)
    assert statistics.pstdev(hundred) == pytest.approx(0.01, rel=0.1)
    assert noise(0, 1, rng) == 1
