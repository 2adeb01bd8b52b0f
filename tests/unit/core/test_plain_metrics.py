"""Plain counters and histograms read like prometheus_client's own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from core.plain_metrics import Counts, Distributions

BOUNDS = (0.01, 0.5, 1.0, 20.0)


def _samples(registry: CollectorRegistry) -> list[str]:
    lines = generate_latest(registry).decode().splitlines()
    return sorted(line for line in lines if "_created" not in line)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([0.0, 0.01, 0.02, 0.5, 7.0, 20.0, 21.0]))))
def test_a_histogram_reads_like_the_library_s_own(values: list[tuple[str, float]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    plain = Distributions("wait_seconds", "Waits", ["model"], BOUNDS, ours)
    library = Histogram("wait_seconds", "Waits", ["model"], buckets=BOUNDS, registry=theirs)
    for model, value in values:
        plain.of(model).observe(value)
        library.labels(model).observe(value)
    assert _samples(ours) == _samples(theirs)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9))))
def test_a_counter_reads_like_the_library_s_own(values: list[tuple[str, int]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    plain, library = (
        Counts("things", "Things", ["kind"], ours),
        Counter("things", "Things", ["kind"], registry=theirs),
    )
    for kind, count in values:
        plain.add((kind,), count)
        library.labels(kind).inc(count)
    assert _samples(ours) == _samples(theirs)


def test_two_metrics_of_one_name_are_refused() -> None:
    registry = CollectorRegistry()
    Counts("things", "Things", ["kind"], registry)
    with pytest.raises(ValueError, match="things"):
        Counts("things", "Things", ["kind"], registry)
