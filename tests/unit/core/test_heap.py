"""The garbage collector of a process that serves requests."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from core import heap


class Node:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.self = self


@pytest.fixture
def collector() -> Iterator[None]:
    """The collector's settings are as before afterwards."""
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


@pytest.mark.usefixtures("collector")
def test_garbage_that_partial_collections_have_spared_goes_before_it_is_a_quarter_of_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = [Node() for _ in range(100_000)]
    monkeypatch.setattr(heap, "YOUNG_OBJECTS", 100)
    heap.freeze_heap()
    nodes = [Node() for _ in range(1000)]
    gc.collect(1)
    garbage = [weakref.ref(node) for node in nodes]
    del nodes
    kept = [[] for _ in range(100 * 21 * 21)]  # type: ignore[var-annotated] # each is an object for the collector
    assert not any(node() for node in garbage)
    assert len(kept) < len(program) / 2
