"""The x-ratelimit-* headers of a refusal, from the levels of the last request that was granted."""

from tenants.principal import Limits
from tenants.rate_headers import RateHeaders


def test_nothing_is_used_before_the_first_request() -> None:
    known = dict(RateHeaders([Limits(requests_per_min=60)]).format_known(1000.0))
    assert known[b"x-ratelimit-remaining-requests"] == b"60"


def test_what_was_used_drains() -> None:
    headers = RateHeaders([Limits(requests_per_min=60, input_tokens_per_min=600)])
    headers.remember((30, 500, 0), 100.0)
    at_once, later, empty = (dict(headers.format_known(at)) for at in (100.0, 110.0, 900.0))
    assert at_once[b"x-ratelimit-remaining-requests"] == b"30"
    assert at_once[b"x-ratelimit-remaining-tokens"] == b"100"
    assert later[b"x-ratelimit-remaining-requests"] == b"40"
    assert later[b"x-ratelimit-remaining-tokens"] == b"200"
    assert empty[b"x-ratelimit-remaining-tokens"] == b"600"
