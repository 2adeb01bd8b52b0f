"""The headers of RFC 9745, RFC 8594 and RFC 5829 on answers of models that go."""

from datetime import UTC, datetime, timedelta, timezone

from api.customer.deprecation import deprecation_block, deprecation_headers
from workers.model_life import Deprecation


def told(**changes: object) -> Deprecation:
    fields: dict[str, object] = {
        "model": "old", "deprecated_at": datetime(2026, 11, 28, tzinfo=UTC), "retires_at": None,
        "replacement": None, "redirected": False, "note": None, "retired": False,
    }  # fmt: skip
    return Deprecation(**{**fields, **changes})  # type: ignore[arg-type]


def test_headers_have_the_forms_of_their_standards() -> None:
    berlin = timezone(timedelta(hours=1))
    going = told(retires_at=datetime(2027, 3, 1, 1, tzinfo=berlin), replacement="Qwen/Qwen3 32B")
    assert deprecation_headers(going) == [
        (b"deprecation", b"@1795824000"),
        (b"sunset", b"Mon, 01 Mar 2027 00:00:00 GMT"),
        (b"link", b'</v1/models/Qwen/Qwen3%2032B>; rel="successor-version"'),
    ]


def test_what_is_not_known_is_not_said() -> None:
    assert deprecation_headers(told()) == [(b"deprecation", b"@1795824000")]
    assert deprecation_headers(told(deprecated_at=None)) == []
    assert deprecation_block(None) is None
    block = deprecation_block(told(deprecated_at=None, note="use another"))
    assert block is not None
    assert (block["deprecated_at"], block["retires_at"], block["note"]) == (None, None, "use another")
