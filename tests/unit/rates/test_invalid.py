"""The estimate of the request rate of keys that send invalid requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.ids import uuid7
from tenants import rate_invalid
from tenants.principal import NO_LIMITS, Limits, Principal
from tenants.rate_invalid import InvalidRequests
from tenants.rate_scopes import Scopes, scopes_of
from tests.support.clock import ManualClock


def scopes(key: Limits = NO_LIMITS, tenant: Limits = NO_LIMITS, ids=None) -> Scopes:
    ids = ids or (uuid7(), uuid7(), uuid7())
    made = scopes_of(
        Principal(*ids, "acme", "abcd", "live", "standard", key, NO_LIMITS, tenant, None, cache_salt="")
    )
    assert made is not None
    return made


def test_a_process_parses_one_minutes_limit_before_the_first_reply() -> None:
    clock, who = ManualClock(), scopes(key=Limits(requests_per_min=3))
    invalid = InvalidRequests(clock)
    for _ in range(3):
        assert invalid.refusal(who) is None
        invalid.sent(who)
    refusal = invalid.refusal(who)
    assert refusal is not None
    assert refusal.details == {"scope": "key", "kind": "requests_per_min", "limit": 3}
    assert refusal.retry_after_s == pytest.approx(20)


def test_a_debt_of_other_processes_refuses_until_it_has_drained() -> None:
    clock, who = ManualClock(), scopes(key=Limits(requests_per_min=60), tenant=Limits(requests_per_min=600))
    invalid = InvalidRequests(clock)
    invalid.sent(who)
    invalid.confirmed(who, [69.0, 0.0, 1.0])
    refusal = invalid.refusal(who)
    assert refusal is not None
    assert refusal.retry_after_s == pytest.approx(10)
    clock.advance(9.9)
    assert invalid.refusal(who) is not None
    clock.advance(0.2)
    assert invalid.refusal(who) is None


def test_raised_limits_apply_at_once_and_a_limit_of_zero_always_refuses() -> None:
    clock, ids = ManualClock(), (uuid7(), uuid7(), uuid7())
    invalid = InvalidRequests(clock)
    for limit, refused in ((1, True), (5, False), (0, True)):
        who = scopes(key=Limits(requests_per_min=limit), ids=ids)
        if limit == 1:
            invalid.sent(who)
        assert (invalid.refusal(who) is not None) is refused


def test_without_redis_requests_are_counted_here() -> None:
    clock, who = ManualClock(), scopes(key=Limits(requests_per_min=2))
    invalid = InvalidRequests(clock)
    for _ in range(2):
        invalid.sent(who)
        invalid.lost(who)
    assert invalid.refusal(who) is not None
    clock.advance(30)
    assert invalid.refusal(who) is None


def test_a_granted_request_shows_that_others_were_refunded() -> None:
    clock, who = ManualClock(), scopes(key=Limits(requests_per_min=2))
    invalid = InvalidRequests(clock)
    invalid.granted(who, [2, 0, 0])
    invalid.sent(who)
    invalid.confirmed(who, [2.0, 0.0, 0.0])
    assert invalid.refusal(who) is not None
    invalid.granted(who, [1, 0, 0])
    assert invalid.refusal(who) is None


def test_the_map_is_bounded_and_drained_buckets_leave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_invalid, "MAX_BUCKETS", 3)
    clock = ManualClock()
    invalid = InvalidRequests(clock)
    for _ in range(7):
        invalid.sent(scopes(key=Limits(requests_per_min=1)))
        assert len(invalid._buckets) <= 3
    who = scopes(key=Limits(requests_per_min=1))
    invalid.sent(who)
    invalid.lost(who)
    clock.advance(60)
    assert invalid.refusal(who) is None
    assert who.ids[0] not in invalid._buckets


@given(
    limit=st.integers(1, 8),
    processes=st.integers(1, 3),
    steps=st.lists(
        st.tuples(st.sampled_from(["request", "reply", "wait"]), st.integers(0, 2), st.integers(1, 20)),
        max_size=120,
    ),
)
def test_invalid_requests_are_bounded_by_the_limit_and_one_round_trip(limit, processes, steps) -> None:
    """Replies arrive late and in any interleaving of processes; Redis counts when the request is sent."""
    clock, who = ManualClock(), scopes(key=Limits(requests_per_min=limit))
    each = [InvalidRequests(clock) for _ in range(processes)]
    waiting: list[list[float]] = [[] for _ in each]
    level, parsed, began = 0.0, 0, clock.monotonic()
    for step, at, seconds in steps:
        number = at % processes
        if step == "wait":
            clock.advance(seconds)
            level = max(0.0, level - seconds * limit / 60)
        elif step == "reply" and waiting[number]:
            # A round trip takes no time of the manual clock between count and reply unless a wait came in between.
            each[number].confirmed(who, [waiting[number].pop(0), 0.0, 0.0])
        elif step == "request" and each[number].refusal(who) is None:
            each[number].sent(who)
            level += 1
            parsed += 1
            waiting[number].append(level)
        drained = (clock.monotonic() - began) * limit / 60
        assert parsed <= limit + drained + (processes - 1) * limit + processes
        assert all(len(replies) <= limit for replies in waiting)
