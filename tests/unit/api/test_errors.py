"""The error table: complete, in OpenAI's shape, with the headers SDKs act on."""

import inspect
import json

import pytest

from api import errors as api_errors
from core import errors


def domain_errors() -> list[type[errors.PenstockError]]:
    found = [e for _, e in inspect.getmembers(errors, inspect.isclass) if issubclass(e, errors.PenstockError)]
    return [e for e in found if e not in (errors.PenstockError, errors.WaitsForApproval)]


@pytest.mark.parametrize("kind", domain_errors())
def test_every_error_is_mapped(kind: type[errors.PenstockError]) -> None:
    status, body, _ = api_errors.to_response(kind("what was wrong", param="x", details={"a": 1}))
    assert 400 <= status < 600
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code", "details"}
    assert error["code"] == kind.code


def test_an_act_that_waits_is_no_error() -> None:
    waits = errors.WaitsForApproval("it waits", details={"approval_id": "7", "kind": "credit.grant"})
    status, body, _ = api_errors.to_response(waits)
    assert status == 202
    assert json.loads(body) == {
        "status": "waiting",
        "approval_id": "7",
        "kind": "credit.grant",
        "message": "it waits",
    }


def headers(error: errors.PenstockError) -> dict[bytes, bytes]:
    return dict(api_errors.to_response(error)[2])


def test_statuses_that_depend_on_the_case() -> None:
    assert api_errors.status_of(errors.Refused("x", status=429)) == (429, "rate_limit_error")
    assert api_errors.status_of(errors.Refused("x"))[0] == 503
    assert api_errors.status_of(api_errors.body_too_large(5))[0] == 413
    assert headers(api_errors.body_too_large(5))[b"connection"] == b"close"


def test_headers_that_sdks_act_on() -> None:
    assert headers(errors.RateLimited("x", retry_after_s=1.2))[b"retry-after"] == b"2"
    assert headers(errors.RateLimited("x", retry_after_s=1.2))[b"retry-after-ms"] == b"1200"
    assert headers(errors.Refused("x"))[b"retry-after"] == b"1"
    assert headers(errors.InsufficientCredit("x"))[b"x-should-retry"] == b"false"
    assert headers(errors.AuthenticationFailed("x"))[b"www-authenticate"] == b"Bearer"


def test_an_error_inside_a_stream_is_an_event() -> None:
    event = api_errors.to_event(errors.EngineFailed("broke"))
    assert event.startswith(b'data: {"error":{"message":"broke"')
    assert event.endswith(b"data: [DONE]\n\n")


def test_a_limit_on_requests_is_told_in_headers_too() -> None:
    facts = {"scope": "key", "kind": "requests_per_min", "limit": 3}
    found = headers(errors.RateLimited("too many", details=facts, retry_after_s=20.0))
    assert found[b"x-ratelimit-limit-requests"] == b"3"
    assert found[b"x-ratelimit-remaining-requests"] == b"0"
    assert found[b"x-ratelimit-reset-requests"] == b"60.000s"
    other = headers(errors.RateLimited("too many", details={**facts, "kind": "concurrency"}))
    assert not any(name.startswith(b"x-ratelimit") for name in other)
