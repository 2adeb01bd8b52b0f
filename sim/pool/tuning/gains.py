"""Gains of an option in the knee, over seeds: each seed's requests are played with it and without."""

from collections.abc import Sequence

from sim.pool.stats import Interval, interval


def gain(without: Sequence[float], with_it: Sequence[float]) -> Interval:
    """Return by which share the knees are higher, with the t interval over the seeds; one knee per seed."""
    return interval([after / before - 1.0 for before, after in zip(without, with_it, strict=True)])


def gain_text(found: Interval) -> str:
    """Return a gain in per cent with its interval."""
    return f"{found.mean:+.0%}, {found.low:+.0%} to {found.high:+.0%}"
