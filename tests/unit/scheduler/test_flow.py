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


def taken(flow: Flow, late_before: float, every: int, growing: bool = True) -> list[float]:
    """Arrival times in the order of service."""
    served = []
    while len(flow):
        chosen = flow.next_request(late_before, every, growing)
        flow.record_turn(chosen, late_before, 1)
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


def test_in_a_growing_queue_timely_requests_go_first_and_every_third_pick_is_the_oldest() -> None:
    assert taken(flow_of(1, 2, 11, 12, 13, 14), late_before=10, every=3) == [11, 12, 1, 13, 14, 2]


def test_unless_the_queue_grows_late_requests_keep_their_turn() -> None:
    assert taken(flow_of(1, 2, 11, 12, 13), late_before=10, every=3, growing=False) == [1, 2, 11, 12, 13]


def test_without_turns_for_late_ones_a_line_is_first_come_first_served() -> None:
    assert taken(flow_of(1, 2, 11, 12), late_before=10, every=1) == [1, 2, 11, 12]


@given(late=st.integers(1, 10), timely=st.integers(0, 60), every=st.integers(2, 8), place=st.integers(0, 9))
def test_in_a_growing_queue_a_late_request_is_served_within_every_times_its_place(
    late: int, timely: int, every: int, place: int
) -> None:
    """Even when timely requests keep coming."""
    flow = flow_of(*range(late), *(1000.0 + n for n in range(timely)))
    place = min(place, late - 1)
    seq = late + timely
    for pick in range(1, every * (place + 1) + 1):
        flow.add(queued(seq := seq + 1, 1000.0 + seq))
        chosen = flow.next_request(500.0, every, True)
        flow.record_turn(chosen, 500.0, 8)
        flow.remove(chosen)
        if chosen.enqueued_at == place:
            assert pick <= every * (place + 1)
            return
    raise AssertionError(f"the late request at place {place} starves (timely: {timely})")


def test_candidates_for_reordering_follow_the_first_request() -> None:
    flow = flow_of(1, 2, 11, 12, 13)
    first = flow.next_request(10.0, 4, True)
    assert [each.enqueued_at for each in flow.reorder_candidates(first, 2, 9)] == [11, 12]
    assert [each.enqueued_at for each in flow.reorder_candidates(first, 8, 9)] == [11, 12, 13]
    assert list(flow.reorder_candidates(first, 1, 9)) == [first]


@given(st.data(), st.integers(1, 6), st.integers(1, 8))
def test_a_request_is_overtaken_a_bounded_number_of_times(
    data: st.DataObject, max_overtaken: int, window: int
) -> None:
    """Whichever candidates are chosen, and while new requests keep arriving."""
    flow, seq = flow_of(*range(10)), 10
    overtakings: dict[int, int] = {}
    for _ in range(80):
        first = flow.next_request(0.0, 16, False)
        chosen = data.draw(st.sampled_from(list(flow.reorder_candidates(first, window, max_overtaken))))
        for each in flow:
            if each.seq < chosen.seq:
                overtakings[each.seq] = overtakings.get(each.seq, 0) + 1
        flow.record_turn(chosen, 0.0, window)
        flow.remove(chosen)
        flow.add(queued(seq, float(seq)))
        seq += 1
    assert max(overtakings.values(), default=0) <= max_overtaken
