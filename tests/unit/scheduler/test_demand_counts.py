"""Requests counted by the places that they are bound to: bounded, whatever keys name."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.autoscale.state import UNBOUND, Binding
from scheduler.demand_counts import MAX_SETS, DemandCounts, KnownPlaces
from scheduler.wire import BoundTo

KNOWN = KnownPlaces(frozenset({"nyc2", "tor1", "ams3"}), frozenset({"b300", "h200"}))
names = st.lists(st.sampled_from(["nyc2", "tor1", "ams3", "fra1", "x"]), max_size=3, unique=True).map(tuple)
gpus = st.lists(st.sampled_from(["b300", "h200", "a"]), max_size=2, unique=True).map(tuple)


def test_names_that_are_not_known_make_no_difference() -> None:
    assert KNOWN.binding(((), ())) == UNBOUND
    assert KNOWN.binding((("tor1", "fra1", "nyc2"), ("h200",))) == Binding(("nyc2", "tor1"), ("h200",))
    assert KNOWN.binding((("fra1",), ())) is None
    assert KNOWN.binding((("tor1",), ("a100",))) is None


def test_what_is_bound_is_counted_apart_and_queued_requests_too() -> None:
    counts = DemandCounts()
    counts.arrive(100, 10, UNBOUND)
    counts.arrive(300, 30, Binding(("tor1",)))
    counts.arrive(500, 10, Binding(("tor1",)))
    counts.serve(50)
    waiting_at: dict[BoundTo, int] = {(("tor1",), ()): 2, (("tor1", "fra1"), ()): 1, (("fra1",), ()): 4}
    anywhere, there = counts.take("m", 9, waiting_at, KNOWN)
    assert (anywhere.where, anywhere.arrivals, anywhere.waiting) == (UNBOUND, 1, 2)
    assert (there.where, there.arrivals, there.waiting) == (Binding(("tor1",)), 2, 3)
    assert (anywhere.prompt_tokens, there.prompt_tokens) == (100.0, 400.0)
    assert (there.output_tokens, there.output_sq) == (20.0, 500.0)
    assert there.uncached_tokens == 50.0
    [left] = counts.take("m", 0, {}, KNOWN)
    assert (left.arrivals, left.uncached_tokens) == (0, 50.0)


@given(st.lists(st.tuples(names, gpus), max_size=60), st.lists(st.tuples(names, gpus), max_size=60))
def test_every_request_counts_once_and_no_more_bindings_than_names_can_form(
    arrived: list[BoundTo], queued: list[BoundTo]
) -> None:
    counts, came = DemandCounts(), 0
    for bound_to in arrived:
        if (where := KNOWN.binding(bound_to)) is not None:
            counts.arrive(1, 1, where)
            came += 1
    waiting_at = {bound_to: queued.count(bound_to) for bound_to in queued if bound_to != ((), ())}
    rows = counts.take("m", len(queued), waiting_at, KNOWN)
    assert sum(row.arrivals for row in rows) == came
    assert sum(row.waiting for row in rows) == sum(KNOWN.binding(each) is not None for each in queued)
    assert len({row.where for row in rows}) == len(rows)


def test_keys_with_ever_other_sets_take_no_memory_and_leave_single_regions_apart() -> None:
    many = [f"r{number}" for number in range(60)]
    known, counts = KnownPlaces(frozenset(many)), DemandCounts()
    for first in many:
        for second in many:
            where = known.binding(((first, second), ()))
            assert where is not None
            counts.arrive(1, 1, where)
    rows = counts.take("m", 0, {}, known)
    assert sum(len(row.where.regions) > 1 for row in rows) == MAX_SETS
    assert len(rows) <= MAX_SETS + len(many) + 1
    assert sum(row.arrivals for row in rows) == 3_600
