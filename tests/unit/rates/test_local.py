"""The rate limiter without Redis: headers, cached refusals, the local limiter."""

import struct

import pytest

from core.errors import RateLimited
from core.ids import uuid7
from tenants.principal import NO_LIMITS, Limits, Principal
from tenants.rate_headers import RateHeaders
from tenants.rate_local import REFUSAL_TTL_S, LocalLimiter, RefusalCache
from tenants.rate_scopes import Scopes, acquire_command, command, scopes_of, settle_command
from tests.support.clock import ManualClock


def scopes(key: Limits = NO_LIMITS, tenant: Limits = NO_LIMITS, ids=None) -> Scopes | None:
    ids = ids or (uuid7(), uuid7(), uuid7())
    return scopes_of(
        Principal(*ids, "acme", "abcd", "live", "standard", key, NO_LIMITS, tenant, None, cache_salt="")
    )


def test_no_limit_needs_no_scopes() -> None:
    assert scopes() is None


def test_commands_are_valid_resp() -> None:
    made = scopes(key=Limits(requests_per_min=7))
    for packed, last in (
        (command(made, "renew", "größe", 12), [b"renew", "größe".encode(), b"12"]),
        (acquire_command(made, "lease", 9, 5, 4), [b"acquire", b"lease", struct.pack("<3d", 9, 5, 4)]),
        (
            settle_command(made, b"epoch", "lease", 20000, (0, -3, 2), 8),
            [b"settle", b"epoch", b"lease", struct.pack("<5d", 20000, 0, -3, 2, 8)],
        ),
    ):
        head, rest = packed.split(b"\r\n", 1)
        parts = []
        while rest:
            size, rest = rest[1:].split(b"\r\n", 1)
            parts.append(rest[: int(size)])
            rest = rest[int(size) + 2 :]
        assert head == b"*%d" % len(parts)
        assert parts[0] == b"EVALSHA"
        assert int(parts[2]) == 4
        assert parts[-len(last) :] == last


def test_headers_name_the_tightest_limit_of_each_kind() -> None:
    limits = (Limits(100, 1000, 500), Limits(10), NO_LIMITS)
    assert RateHeaders(limits).format([4, 900, 100, 5, 0, 0, 0, 0, 0]) == [
        (b"x-ratelimit-limit-requests", b"10"),
        (b"x-ratelimit-remaining-requests", b"5"),
        (b"x-ratelimit-reset-requests", b"30.000s"),
        (b"x-ratelimit-limit-tokens", b"1000"),
        (b"x-ratelimit-remaining-tokens", b"100"),
        (b"x-ratelimit-reset-tokens", b"54.000s"),
    ]
    assert RateHeaders((NO_LIMITS,) * 3).format([0] * 9) == []
    assert (b"x-ratelimit-remaining-tokens", b"0") in RateHeaders((Limits(None, 10),)).format([0, 99, 0])


def test_a_refusal_is_cached_until_it_expires_or_the_limits_change() -> None:
    clock, ids = ManualClock(), (uuid7(), uuid7(), uuid7())
    cache = RefusalCache(clock)
    tenant = Limits(requests_per_min=1)
    made = scopes(tenant=tenant, ids=ids)
    assert cache.get(made) is None
    cache.put(made, 2, RateLimited("no", details={"scope": "tenant"}), 10.0)
    other_key = scopes(tenant=tenant, ids=(uuid7(), uuid7(), ids[2]))
    clock.advance(0.5)
    assert cache.get(other_key).retry_after_s == pytest.approx(9.5)
    assert cache.get(scopes(tenant=Limits(requests_per_min=2), ids=ids)) is None
    for for_s in (10.0, 0.3):
        cache.put(made, 2, RateLimited("no"), for_s)
        clock.advance(min(for_s, REFUSAL_TTL_S))
        assert cache.get(made) is None


def test_the_local_limit_is_per_tenant_and_never_above_a_scopes_own_limit() -> None:
    clock, ids = ManualClock(), (uuid7(), uuid7(), uuid7())
    cap = LocalLimiter(clock, 5)
    wide = scopes(tenant=Limits(requests_per_min=100_000), ids=ids)
    for _ in range(5):
        cap.admit(wide)
    with pytest.raises(RateLimited) as caught:
        cap.admit(wide)
    assert caught.value.details["scope"] == "tenant"
    assert caught.value.retry_after_s == pytest.approx(0.2)
    clock.advance(0.2)
    cap.admit(wide)
    narrow = scopes(key=Limits(requests_per_min=2))
    cap.admit(narrow)
    cap.admit(narrow)
    with pytest.raises(RateLimited) as caught:
        cap.admit(narrow)
    assert caught.value.retry_after_s == pytest.approx(30)
