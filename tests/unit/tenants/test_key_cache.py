from datetime import timedelta
from uuid import UUID, uuid4

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.key_cache import REFUSAL_TTL_S, KeyCache
from tenants.principal import NO_LIMITS, Limits, Principal
from tenants.resolve import Admission, Refusal
from tests.support.clock import ManualClock

TENANTS = [uuid4() for _ in range(3)]


def principal(tenant_id: UUID = TENANTS[0]) -> Principal:
    return Principal(
        key_id=uuid4(),
        project_id=uuid4(),
        tenant_id=tenant_id,
        tenant="Acme",
        last4="abcd",
        kind="live",
        tier="standard",
        key_limits=NO_LIMITS,
        project_limits=NO_LIMITS,
        tenant_limits=NO_LIMITS,
        allowed_models=None,
        cache_salt="salt",
    )


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["admit", "refuse", "forget"]), st.integers(0, 30), st.sampled_from(TENANTS)
        )
    )
)
def test_the_cache_is_bounded_and_never_serves_what_was_dropped(steps: list[tuple[str, int, UUID]]) -> None:
    clock = ManualClock()
    cache = KeyCache(clock, admitted_size=5, refused_size=4)
    live: dict[bytes, Principal] = {}
    for act, number, tenant_id in steps:
        digest = bytes([number])
        if act == "admit":
            live[digest] = principal(tenant_id)
            cache.put(digest, Admission(live[digest], None))
            assert cache.admitted(digest, clock.now()) == live[digest]
            assert cache.refused(digest) is None
        elif act == "refuse":
            live.pop(digest, None)
            cache.put(digest, Refusal("unknown"))
            assert cache.admitted(digest, clock.now()) is None
            assert cache.refused(digest) == Refusal("unknown")
        else:
            cache.invalidate_tenants({tenant_id})
            live = {key: value for key, value in live.items() if value.tenant_id != tenant_id}
        assert len(cache) <= 9
        for digest in map(bytes, ([n] for n in range(31))):
            found = cache.admitted(digest, clock.now())
            assert found is None or found == live.get(digest)


def test_an_expired_key_turns_into_a_refusal() -> None:
    clock = ManualClock()
    cache = KeyCache(clock, 10, 10)
    who = principal()
    cache.put(b"k", Admission(who, clock.now() + timedelta(seconds=10)))
    clock.advance(9.9)
    assert cache.admitted(b"k", clock.now()) == who
    clock.advance(0.1)
    assert cache.admitted(b"k", clock.now()) is None
    assert cache.refused(b"k") == Refusal("expired", who.key_id)


def test_a_refusal_expires_and_is_invalidated_by_a_change() -> None:
    clock = ManualClock()
    cache = KeyCache(clock, 10, 10)
    cache.put(b"a", Refusal("unknown"))
    clock.advance(REFUSAL_TTL_S)
    assert cache.refused(b"a") is None
    cache.put(b"b", Refusal("suspended"))
    generation = cache.generation
    cache.invalidate_tenants({TENANTS[0]})
    assert cache.refused(b"b") is None
    assert cache.generation > generation


def test_a_throttle_holds_until_its_end() -> None:
    clock = ManualClock()
    who = principal()
    slowed = msgspec.structs.replace(who, tenant_limits=Limits(concurrency=1))
    entry = Admission(who, None, slowed, clock.now() + timedelta(seconds=60))
    assert entry.at(clock.now()) == slowed
    clock.advance(60)
    assert entry.at(clock.now()) == who


@pytest.mark.parametrize(
    ("present", "cap", "expected"), [(None, 5, 5), (3, 5, 3), (7, 5, 5), (7, None, 7), (None, None, None)]
)
def test_a_throttle_lowers_and_never_raises(
    present: int | None, cap: int | None, expected: int | None
) -> None:
    limits = Limits(requests_per_min=present, concurrency=present, tokens_per_day=9)
    assert limits.capped(cap, cap) == Limits(
        requests_per_min=expected, concurrency=expected, tokens_per_day=9
    )


@pytest.mark.parametrize("reason", ["unknown", "malformed", "revoked", "expired", "archived", "suspended"])
def test_every_refusal_says_what_to_do(reason: str) -> None:
    error = Refusal(reason).error()
    assert len(error.message.split(".")) >= 2
    assert error.code
