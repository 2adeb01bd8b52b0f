"""Growth of a queue is sustained only when more arrives than is served for several seconds."""

import random

from scheduler.core.growth import MAX_SCORE, PERIOD_S, SUSTAINED, Growth


def played(rng: random.Random, arrivals_per_s: float, served_per_s: float, seconds: float) -> Growth:
    """A queue with random arrivals and services."""
    growth, now, waiting = Growth(), 0.0, 0
    while now < seconds:
        now += rng.expovariate(arrivals_per_s + served_per_s)
        if rng.random() * (arrivals_per_s + served_per_s) < arrivals_per_s:
            growth.observe(now, waiting)
            waiting += 1
        elif waiting:
            waiting -= 1
    return growth


def test_overload_is_sustained_growth() -> None:
    assert all(played(random.Random(seed), 52.0, 40.0, 30.0).sustained for seed in range(50))


def test_a_queue_that_is_served_as_fast_as_it_fills_does_not_grow() -> None:
    assert not any(played(random.Random(seed), 30.0, 40.0, 30.0).sustained for seed in range(50))


def test_a_long_queue_of_constant_length_and_a_burst_are_no_growth() -> None:
    growth, rng = Growth(), random.Random(1)
    for n in range(64):
        growth.observe(0.001 * n, n)
    for second in range(1, 60):
        level = 64 if second < 30 else 192
        for n in range(20):
            growth.observe(second + n / 20, level + rng.randrange(-4, 4))
            assert not growth.sustained


def test_growth_is_over_some_periods_after_the_queue_stopped_growing() -> None:
    growth, now = Growth(), 0.0
    for n in range(1000):
        now = n / 20
        growth.observe(now, n)
    assert growth.sustained
    for n in range(20 * MAX_SCORE + 40):
        growth.observe(now + n / 20, 1000)
    assert not growth.sustained


def test_a_silence_counts_as_periods_without_growth() -> None:
    growth, now = Growth(), 0.0
    for n in range(20 * (SUSTAINED + 2)):
        now = n / 20
        growth.observe(now, n)
    assert growth.sustained
    for late_s in (0.0, 1.1, 2.2):
        growth.observe(now + MAX_SCORE * PERIOD_S + late_s, 120)
    assert not growth.sustained
