"""The money path on virtual time: seeded schedules hold, replay exactly, and every mutant is noticed."""

import logging
from collections.abc import Iterator

import pytest

from tests.simulation.mutants import MUTANTS
from tests.simulation.play import play

SCHEDULES = 800
"""Schedules of `make test`; `make simulate-money` plays 10,000."""
WITHIN = 3000
"""Schedules within which a mutant must be noticed."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Faults are the rule here, and the product logs each."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.promise(1, 2, 3, 4, 5, 6, 7, 13)
@pytest.mark.parametrize("first", range(0, SCHEDULES, 100))
def test_the_books_hold_in_random_schedules(first: int) -> None:
    for seed in range(first, first + 100):
        result = play(seed)
        assert not result.problems, f'make simulate-money ARGS="--seed {seed} --log"'


@pytest.mark.promise(10)
def test_the_books_hold_when_postgresql_is_away_for_five_minutes() -> None:
    """Running streams finish and are settled once, nothing is admitted meanwhile, whatever else strikes."""
    for seed in range(60):
        result = play(seed, away_s=300.0)
        assert not result.problems, seed
        assert result.virtual_s > 300.0


def test_a_seed_replays_exactly() -> None:
    for seed in range(40):
        lines: list[str] = []
        assert play(seed, log=lines.append) == play(seed)
        again: list[str] = []
        play(seed, log=again.append)
        assert lines == again


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_noticed(name: str) -> None:
    busy = name.startswith("compaction")
    for seed in range(WITHIN):
        if play(seed, change=MUTANTS[name], always_busy=busy).problems:
            return
    pytest.fail(f"{WITHIN} schedules hold in spite of: {name}")
