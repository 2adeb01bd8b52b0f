"""What is played, one run at a time: importable by the processes that play it."""

from sim.pool.fairness_runs import CASES, Figures, play, queues, swept
from workers.catalog import load_catalog


def cells() -> list[tuple[int, str]]:
    """Scene and queue of everything that is played; Q is swept in the first scene."""
    return [(index, name) for index in range(len(CASES)) for name in queues()] + [
        (0, name) for name in swept()
    ]


def one(index: int, name: str, model: str, seconds: float, seed: int) -> Figures:
    """A run, in a process of its own."""
    options = {**queues(), **swept()}[name]
    return play(CASES[index], options, load_catalog(), model, seconds, seed)
