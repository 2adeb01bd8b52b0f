"""Client addresses behind proxies, and rates that one process keeps."""

from typing import Any

import pytest

from api.request_rates import InvalidRequestRate
from core.client_address import ClientAddresses
from core.errors import RateLimited
from core.ids import uuid7
from core.leaky_buckets import LeakyBuckets
from tests.support.clock import ManualClock


def scope(peer: str, *forwarded: str) -> dict[str, Any]:
    return {
        "client": (peer, 1234),
        "headers": [(b"x-forwarded-for", value.encode()) for value in forwarded],
    }


@pytest.mark.parametrize(
    ("peer", "forwarded", "found"),
    [
        ("203.0.113.9", ["198.51.100.1"], "203.0.113.9"),
        ("10.0.0.2", ["198.51.100.1"], "198.51.100.1"),
        ("10.0.0.2", ["6.6.6.6, 198.51.100.1, 10.0.0.7"], "198.51.100.1"),
        ("10.0.0.2", ["6.6.6.6", "198.51.100.1"], "198.51.100.1"),
        ("10.0.0.2", ["nonsense"], "10.0.0.2"),
        ("10.0.0.2", [], "10.0.0.2"),
        ("::ffff:10.0.0.2", ["198.51.100.1"], "198.51.100.1"),
        ("2001:db8:1:2:3::4", [], "2001:db8:1:2::/64"),
        ("", [], ""),
    ],
)
def test_the_client_is_named_by_trusted_proxies_alone(peer: str, forwarded: list[str], found: str) -> None:
    assert ClientAddresses("10.0.0.0/8, 192.0.2.1").of(scope(peer, *forwarded)) == found


def test_trusted_proxies_are_named_as_networks() -> None:
    assert ClientAddresses("10.0.0.1/8, 192.0.2.1,").trusted == ["10.0.0.0/8", "192.0.2.1/32"]


def test_keys_that_sent_invalid_requests_wait_until_their_address_conforms() -> None:
    clock = ManualClock()
    rate = InvalidRequestRate(60, ClientAddresses(""), clock.monotonic)
    guilty, neighbour, here, there = uuid7(), uuid7(), scope("203.0.113.9"), scope("203.0.113.10")
    for _ in range(60):
        rate.check(here, guilty)
        rate.count(here, guilty)
    with pytest.raises(RateLimited) as refused:
        rate.check(here, guilty)
    assert refused.value.retry_after_s == pytest.approx(1.0)
    rate.check(here, neighbour)
    rate.check(there, guilty)
    clock.advance(1.0)
    rate.check(here, guilty)


def test_without_a_limit_nothing_is_counted() -> None:
    rate = InvalidRequestRate(0, ClientAddresses(""), ManualClock().monotonic)
    key, here = uuid7(), scope("203.0.113.9")
    for _ in range(10_000):
        rate.count(here, key)
    rate.check(here, key)


def test_buckets_drain_and_are_bounded() -> None:
    clock = ManualClock()
    buckets = LeakyBuckets(60, clock.monotonic, max_subjects=10)
    for number in range(1000):
        buckets.fill(number)
        buckets.fill("regular")
    assert len(buckets) == 10
    assert buckets.level("regular") == 1000
    clock.advance(999)
    assert buckets.level("regular") == pytest.approx(1.0)
    clock.advance(2)
    assert buckets.level("regular") == 0
