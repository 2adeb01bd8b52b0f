"""Defines and runs the cells one at a time; importable by worker processes."""

from sim.pool.fairness_runs import CASES, Figures, ablated, play, queues
from workers.catalog import load_catalog


def cells() -> list[tuple[int, str]]:
    """Return the case and queue of every cell; the ablated one is of the first case."""
    return [(index, name) for index in range(len(CASES)) for name in queues()] + [
        (0, name) for name in ablated()
    ]


def one(index: int, name: str, model: str, seconds: float, seed: int) -> Figures:
    """Run one cell, in a worker process."""
    options = {**queues(), **ablated()}[name]
    return play(CASES[index], options, load_catalog(), model, seconds, seed)
