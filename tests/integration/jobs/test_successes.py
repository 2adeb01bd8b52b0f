"""The last success of each job, which the processes of the role tell each other."""

import pytest
from redis import Redis

from jobs.successes import KEY, READ_S, Successes

LIMITS = {"often": 60.0, "seldom": 3600.0}


class Clock:
    def __init__(self) -> None:
        self.at = 1_000_000.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_job_is_overdue_after_its_own_limit_since_its_success_or_the_start(clock: Clock) -> None:
    made = Successes(LIMITS, "", timeout_s=2.0, now=clock)
    clock.at += 60
    assert made.overdue() == []
    clock.at += 1
    assert made.overdue() == ["often"]
    made.add("often")
    assert made.overdue() == []
    clock.at += 3600
    assert made.overdue() == ["often", "seldom"]
    made.close()


def test_a_success_in_another_process_counts(redis_url: str, clock: Clock) -> None:
    with Redis.from_url(redis_url) as client:
        client.hset(KEY, mapping={"of an older release": "1"})
    busy = Successes(LIMITS, redis_url, timeout_s=10.0, now=clock)
    idle = Successes(LIMITS, redis_url, timeout_s=10.0, now=clock)
    clock.at += 61
    busy.add("often")
    assert idle.overdue() == ["often"]
    idle.add("seldom")
    assert idle.overdue() == []
    clock.at += READ_S
    busy.add("often")
    assert busy.overdue() == []
    busy.close()
    idle.close()


def test_without_redis_a_process_knows_its_own_successes(clock: Clock) -> None:
    made = Successes(LIMITS, "redis://127.0.0.1:1/0", timeout_s=2.0, now=clock)
    clock.at += 61
    made.add("often")
    assert made.overdue() == []
    made.close()
