"""CORS: which pages may use a key, and which preflights are answered."""

import msgspec
import pytest

from api import cors
from core.errors import InvalidRequest, PermissionDenied
from tenants.client_settings import check_quota_status, clean_origins
from tests.support.gateway_fakes import principal

PAGE = "https://app.example.com"


def test_origins_are_written_as_browsers_send_them() -> None:
    assert clean_origins(None) is None
    assert clean_origins([]) is None
    good = ["http://localhost:3000", PAGE, "http://[::1]:8080"]
    assert clean_origins([*good, PAGE]) == sorted(good)
    for bad in (
        "*",
        "null",
        "app.example.com",
        PAGE + "/",
        "https://App.example.com",
        "https://a b",
        "ftp://x",
    ):
        with pytest.raises(InvalidRequest):
            clean_origins([bad])
    with pytest.raises(InvalidRequest):
        clean_origins([f"https://{number}.example.com" for number in range(21)])
    assert check_quota_status(429) == 429
    with pytest.raises(InvalidRequest):
        check_quota_status(403)


def test_a_key_is_used_by_pages_of_its_origins_only() -> None:
    plain = principal()
    assert not cors.check_origin(plain, PAGE)
    paged = msgspec.structs.replace(plain, cors_origins=frozenset({PAGE}))
    assert cors.check_origin(paged, PAGE)
    with pytest.raises(PermissionDenied) as refused:
        cors.check_origin(paged, "https://evil.example.com")
    assert refused.value.code == "origin_not_allowed"


@pytest.mark.parametrize(
    ("method", "path", "origin", "asked", "expected"),
    [
        ("OPTIONS", "/v1/chat/completions", PAGE, True, True),
        ("OPTIONS", "/v1/chat/completions", "https://evil.example.com", True, False),
        ("OPTIONS", "/v1/chat/completions", PAGE, False, False),
        ("OPTIONS", "/admin/v1/tenants", PAGE, True, False),
        ("POST", "/v1/chat/completions", PAGE, True, False),
    ],
)
def test_a_preflight_is_answered_for_origins_that_some_key_allows(
    method: str, path: str, origin: str, asked: bool, expected: bool
) -> None:
    headers = [(b"origin", origin.encode())]
    headers += [(b"access-control-request-method", b"POST")] if asked else []
    assert cors.is_preflight({"method": method, "path": path, "headers": headers}, {PAGE}) is expected


async def test_only_names_of_headers_are_echoed() -> None:
    async def allowed(names: bytes) -> bytes | None:
        sent = []

        async def send(message):
            sent.append(message)

        headers = [(b"origin", PAGE.encode()), (b"access-control-request-headers", names)]
        await cors.answer_preflight({"headers": headers}, send)
        assert sent[0]["status"] == 204
        return dict(sent[0]["headers"]).get(b"access-control-allow-headers")

    assert await allowed(b"authorization, x-stainless-lang") == b"authorization, x-stainless-lang"
    assert await allowed(b"a: b\r\nset-cookie") is None
    assert await allowed(b"a" * 3000) is None
