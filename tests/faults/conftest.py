"""A platform on the simulated engine that fault tests may hurt: fresh for every test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.stack import Stack


@pytest.fixture
def make_stack(tmp_path: Path) -> Iterator[Callable[..., Stack]]:
    """Start a platform with the given flags; stopped afterwards, whatever happened."""
    started: list[Stack] = []

    def make(*flags: str) -> Stack:
        stack = Stack(tmp_path / f"data-{len(started)}", "--engine", "sim", *flags)
        started.append(stack)
        return stack.start()

    yield make
    for stack in started:
        stack.stop()
