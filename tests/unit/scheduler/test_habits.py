"""What a model's answers teach: how much of a prompt is really left to prefill, how far a batch may go."""

import pytest

from scheduler.core.config import PolicyConfig
from scheduler.core.habits import FOUND_LIMITS, Habits

PROMISED_S = 0.08
FULL_S = 0.078
ROOMY_S = 0.02
WAITED_S = 3.0


def test_tokens_left_to_prefill_follow_what_engines_found() -> None:
    habits = Habits(PolicyConfig())
    for _ in range(500):
        habits.prefilled(400, 100)
        habits.prefilled(1600, 900)
    assert habits.found_share == pytest.approx(0.5, rel=0.05)


def test_one_wrong_answer_moves_little_and_none_beyond_the_limits() -> None:
    habits = Habits(PolicyConfig())
    habits.prefilled(1000, 0)
    assert habits.found_share > 0.95
    for _ in range(2000):
        habits.prefilled(1000, -5)
    assert habits.found_share == FOUND_LIMITS[0]
    for _ in range(2000):
        habits.prefilled(0, 9000)
    assert habits.found_share == FOUND_LIMITS[1]


def test_full_batches_shrink_while_they_miss_the_promise_and_grow_back_within_bounds() -> None:
    config = PolicyConfig()
    habits = Habits(config)
    for _ in range(20):
        habits.answered(FULL_S, 1.1 * PROMISED_S, PROMISED_S, WAITED_S)
    assert config.slack_least < habits.slack < config.itl_slack
    for _ in range(1000):
        habits.answered(FULL_S, 1.1 * PROMISED_S, PROMISED_S, WAITED_S)
    assert habits.slack == config.slack_least
    for _ in range(10_000):
        habits.answered(FULL_S, 0.9 * PROMISED_S, PROMISED_S, WAITED_S)
    assert habits.slack == config.slack_most


def test_a_batch_with_room_is_not_to_blame() -> None:
    habits = Habits(PolicyConfig())
    before = habits.slack
    for _ in range(100):
        habits.answered(ROOMY_S, 2 * PROMISED_S, PROMISED_S, WAITED_S)
    assert habits.slack == before


def test_while_nobody_queues_nobody_is_made_to() -> None:
    config = PolicyConfig()
    habits = Habits(config)
    for _ in range(1000):
        habits.answered(FULL_S, 2 * PROMISED_S, PROMISED_S, 0.0)
    assert habits.slack >= config.itl_slack
