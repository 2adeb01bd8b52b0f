"""Full load: the inverse of the number of replicas that a load needs, and the loop of full batches."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.autoscale.capacity import Load, shortfall
from scheduler.core.autoscale.full_load import full_load, saturated_rate
from workers.catalog import load_catalog
from workers.wire import Capacity, Targets

NODE = Capacity(10_000.0, 0.008, 0.0004, 1e-8, accept_per_step=2.0, max_num_seqs=100, kv_cache_tokens=400_000)
TARGETS = Targets(2.0, 0.04)


@given(st.floats(500, 8_000), st.floats(0, 1), st.floats(10, 1_000), st.integers(1, 12))
def test_the_full_load_is_kept_and_a_little_more_is_not(
    prompt: float, computed: float, output: float, replicas: int
) -> None:
    mix = Load(99.0, prompt, 1 + computed * (prompt - 1), output)
    found = full_load(mix, replicas, NODE, TARGETS)
    assert found.rate > 0
    assert shortfall(msgspec.structs.replace(mix, rate=found.rate), replicas, NODE, TARGETS) == ""
    more = msgspec.structs.replace(mix, rate=1.001 * found.rate)
    assert shortfall(more, replicas, NODE, TARGETS) != "" != found.limit


def test_targets_that_no_load_meets_have_no_full_load() -> None:
    found = full_load(Load(0.0, 1_000, 1_000, 100), 1, NODE, Targets(2.0, 0.001))
    assert found.rate == 0.0
    assert "ms a token" in found.limit


def test_a_pool_carries_more_a_replica_than_one_alone() -> None:
    mix = Load(0.0, 8_000, 8_000, 100)
    alone = full_load(mix, 1, NODE, TARGETS).rate
    assert full_load(mix, 8, NODE, TARGETS).rate > 8.5 * alone


def test_full_batches_take_turns_of_prefill_and_decode() -> None:
    """100 sequences: 200 tokens in 100 steps of 8 + 40 + 11 ms, and 100 prompts of 0.1 s; by hand."""
    rate = saturated_rate(Load(0.0, 1_000, 1_000, 200), NODE)
    step_s = 0.008 + 0.04 + 1e-8 * 100 * 1_100
    assert rate == pytest.approx(100 / (200 * step_s / 2 + 100 * 0.1))


def test_the_cache_bounds_the_batch_and_answers_may_be_empty() -> None:
    rate = saturated_rate(Load(0.0, 7_950, 0, 100), NODE)
    step_s = 0.008 + 0.0004 * 50 + 1e-8 * 50 * 8_000
    assert rate == pytest.approx(50 / (100 * step_s / 2))
    assert saturated_rate(Load(0.0, 1_000, 1_000, 0), NODE) == pytest.approx(10.0)


def test_tp8_of_deepseek_is_bound_by_prefill_as_the_published_figures_are() -> None:
    """8k/1k: 19,000 tokens of input and 2,300 of output a second with 256 users, whatever they wait."""
    rate = saturated_rate(
        Load(0.0, 8_000, 8_000, 1_000), load_catalog().model("deepseek-v3.2").profile("tp8").capacity
    )
    assert 8_000 * rate == pytest.approx(19_000, rel=0.03)
    assert 1_000 * rate == pytest.approx(2_300, rel=0.03)
