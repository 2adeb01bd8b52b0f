"""The error table: complete, in OpenAI's shape, with the headers SDKs act on."""

import inspect
import json

import asyncpg
import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy.exc import DBAPIError

from api import errors as api_errors
from api.app import _install_error_handlers
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
    paid = issubclass(kind, errors.PaymentRequired)
    assert error["code"] == ("insufficient_quota" if paid else kind.code)


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
    assert api_errors.status_of(errors.Refused("x", status=429)) == (429, "requests")
    assert api_errors.status_of(errors.Refused("x"))[0] == 503
    assert api_errors.status_of(api_errors.body_too_large(5))[0] == 413
    assert headers(api_errors.body_too_large(5))[b"connection"] == b"close"


def test_headers_that_sdks_act_on() -> None:
    assert headers(errors.RateLimited("x", retry_after_s=1.2))[b"retry-after"] == b"2"
    assert headers(errors.RateLimited("x", retry_after_s=1.2))[b"retry-after-ms"] == b"1200"
    assert headers(errors.Refused("x"))[b"retry-after"] == b"1"
    assert headers(errors.InsufficientCredit("x"))[b"x-should-retry"] == b"false"
    assert headers(errors.AuthenticationFailed("x"))[b"www-authenticate"] == b"Bearer"


def test_money_is_refused_as_openai_refuses_it() -> None:
    error = errors.BudgetExceeded("used up", details={"open_requests": 2})
    status, body, _ = api_errors.to_response(error)
    found = json.loads(body)["error"]
    assert (status, found["type"], found["code"]) == (402, "insufficient_quota", "insufficient_quota")
    assert found["details"] == {"reason": "budget_exceeded", "open_requests": 2}
    status, _, sent = api_errors.to_response(error, 429)
    assert status == 429
    assert dict(sent) == {b"x-should-retry": b"false"}  # nothing to wait for


def test_sdks_do_not_repeat_what_cannot_succeed() -> None:
    assert b"x-should-retry" not in headers(errors.RateLimited("x", retry_after_s=60.0))
    assert headers(errors.RateLimited("x", retry_after_s=61.0))[b"x-should-retry"] == b"false"
    assert headers(errors.Conflict("x"))[b"x-should-retry"] == b"false"  # SDKs repeat a 409


def test_a_refusal_has_the_limits_that_it_does_not_name_itself() -> None:
    own = [(b"x-ratelimit-limit-requests", b"3")]
    known = [(b"x-ratelimit-limit-requests", b"9"), (b"x-ratelimit-limit-tokens", b"5")]
    assert api_errors.with_limits(own, known) == [*own, known[1]]


@pytest.mark.parametrize(
    ("kind", "expected"), [("input_tokens_per_min", "tokens"), ("concurrency", "requests")]
)
def test_the_type_of_a_429_is_what_is_limited(kind: str, expected: str) -> None:
    assert api_errors.status_of(errors.RateLimited("x", details={"kind": kind})) == (429, expected)


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


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (asyncpg.QueryCanceledError("canceling statement due to statement timeout"), 503, "database_busy"),
        (asyncpg.LockNotAvailableError("canceling statement due to lock timeout"), 503, "database_busy"),
        (asyncpg.UniqueViolationError("duplicate key"), 500, "internal_error"),
    ],
)
async def test_a_statement_that_postgresql_ended_for_its_time_is_no_bug(
    error: Exception, status: int, code: str
) -> None:
    app = FastAPI()
    _install_error_handlers(app)

    @app.get("/")
    async def fail() -> None:
        raise DBAPIError("UPDATE", {}, error)

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
        answer = await client.get("/")
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert ("retry-after" in answer.headers) == (status == 503)
