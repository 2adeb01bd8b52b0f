"""One tenant's line: by age, timely ones first, and late ones not for ever."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.flow import Flow, QueuedRequest
from tests.support.scheduling import request


def queued(seq: int, at: float) -> QueuedRequest:
    return QueuedRequest("api", request(f"r{seq}"), at, at + 30.0, seq, work=10.0)


def flow_of(*arrivals: float) -> Flow:
    flow = Flow("tenant-1", 0.0)
    for seq, at in enumerate(arrivals):
        flow.add(queued(seq, at))
    return flow


def taken(flow: Flow, late_before: float, every: int) -> list[float]:
    """Arrival times in the order of service."""
    served = []
    while len(flow):
        chosen = flow.next_request(late_before, every)
        flow.record_turn(late_before, chosen=False)
        flow.remove(chosen)
        served.append(chosen.enqueued_at)
    return served


@given(st.lists(st.floats(0, 100), max_size=30))
def test_a_line_is_sorted_by_age_whatever_the_order_of_coming(arrivals: list[float]) -> None:
    flow = flow_of(*arrivals)
    assert [each.enqueued_at for each in flow] == sorted(arrivals)
    assert [flow.rank(each) for each in flow] == list(range(len(arrivals)))
    assert taken(flow, 200.0, 1) == sorted(arrivals)
    assert flow.work == 0.0


def test_timely_requests_go_first_and_every_third_pick_is_the_oldest() -> None:
    assert taken(flow_of(1, 2, 11, 12, 13, 14), late_before=10, every=3) == [11, 12, 1, 13, 14, 2]


def test_without_turns_for_late_ones_a_line_is_first_come_first_served() -> None:
    assert taken(flow_of(1, 2, 11, 12), late_before=10, every=1) == [1, 2, 11, 12]


@given(late=st.integers(1, 10), timely=st.integers(0, 60), every=st.integers(2, 8), place=st.integers(0, 9))
def test_a_late_request_is_served_within_every_times_its_place(
    late: int, timely: int, every: int, place: int
) -> None:
    """Even when timely ones keep coming, and always the newest of those that may be chosen is."""
    flow = flow_of(*range(late))
    place = min(place, late - 1)
    seq = late
    for pick in range(1, every * (place + 1) + 1):
        flow.add(queued(seq := seq + 1, 1000.0 + seq))
        chosen = flow.reorder_candidates(flow.next_request(500.0, every), every, 8)[-1]
        flow.record_turn(500.0, chosen=True)
        flow.remove(chosen)
        if chosen.enqueued_at == place:
            assert pick <= every * (place + 1)
            return
    raise AssertionError(f"the late request at place {place} starves (timely: {timely})")


def test_who_may_go_in_another_ones_place_stands_right_behind_it() -> None:
    flow = flow_of(1, 2, 11, 12, 13)
    first = flow.next_request(10.0, 4)
    assert [each.enqueued_at for each in flow.reorder_candidates(first, 4, 2)] == [11, 12]
    assert [each.enqueued_at for each in flow.reorder_candidates(first, 4, 8)] == [11, 12, 13]
    assert flow.reorder_candidates(first, 4, 1) == [first]


def test_on_the_turn_of_the_oldest_nobody_goes_in_its_place_though_all_are_timely() -> None:
    flow, served = flow_of(11, 12, 13, 14, 15, 16), []
    while len(flow):
        chosen = flow.reorder_candidates(flow.next_request(10.0, 3), 3, 8)[-1]
        flow.record_turn(10.0, chosen=True)
        flow.remove(chosen)
        served.append(chosen.enqueued_at)
    assert served == [16, 15, 11, 14, 13, 12]
