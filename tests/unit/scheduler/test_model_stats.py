"""What a model's answers teach: how much of a prompt is really left to prefill, how far a batch may go."""

import pytest

from scheduler.core.config import PolicyConfig
from scheduler.core.model_stats import UNCACHED_RATIO_BOUNDS, ModelStats

PROMISED_S = 0.08
FULL_S = 0.078
ROOMY_S = 0.02
WAITED_S = 3.0


def test_tokens_left_to_prefill_follow_what_engines_found() -> None:
    stats = ModelStats(PolicyConfig())
    for _ in range(500):
        stats.observe_prefill(400, 100)
        stats.observe_prefill(1600, 900)
    assert stats.uncached_ratio == pytest.approx(0.5, rel=0.05)


def test_one_wrong_answer_moves_little_and_none_beyond_the_limits() -> None:
    stats = ModelStats(PolicyConfig())
    stats.observe_prefill(1000, 0)
    assert stats.uncached_ratio > 0.95
    for _ in range(2000):
        stats.observe_prefill(1000, -5)
    assert stats.uncached_ratio == UNCACHED_RATIO_BOUNDS[0]
    for _ in range(2000):
        stats.observe_prefill(0, 9000)
    assert stats.uncached_ratio == UNCACHED_RATIO_BOUNDS[1]


def test_full_batches_shrink_while_they_miss_the_promise_and_grow_back_within_bounds() -> None:
    config = PolicyConfig()
    stats = ModelStats(config)
    for _ in range(20):
        stats.observe_itl(FULL_S, 1.1 * PROMISED_S, PROMISED_S, WAITED_S)
    assert config.slack_min < stats.itl_slack < config.itl_slack
    for _ in range(1000):
        stats.observe_itl(FULL_S, 1.1 * PROMISED_S, PROMISED_S, WAITED_S)
    assert stats.itl_slack == config.slack_min
    for _ in range(10_000):
        stats.observe_itl(FULL_S, 0.9 * PROMISED_S, PROMISED_S, WAITED_S)
    assert stats.itl_slack == config.slack_max


def test_a_batch_with_room_is_not_to_blame() -> None:
    stats = ModelStats(PolicyConfig())
    before = stats.itl_slack
    for _ in range(100):
        stats.observe_itl(ROOMY_S, 2 * PROMISED_S, PROMISED_S, WAITED_S)
    assert stats.itl_slack == before


def test_while_nobody_queues_nobody_is_made_to() -> None:
    config = PolicyConfig()
    stats = ModelStats(config)
    for _ in range(1000):
        stats.observe_itl(FULL_S, 2 * PROMISED_S, PROMISED_S, 0.0)
    assert stats.itl_slack >= config.itl_slack
