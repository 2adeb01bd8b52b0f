"""Logs: one JSON object per line, secrets masked, sizes bounded."""

import json
import logging
import sys

import pytest

from core.logs import JsonFormatter, mask_secrets, setup_logging


def line(message: str, *args: object, **extra: object) -> dict[str, object]:
    record = logging.getLogger("x").makeRecord("x", logging.INFO, "f", 1, message, args, None, extra=extra)
    return json.loads(JsonFormatter("api").format(record))


def test_a_line_holds_message_role_and_extra_fields() -> None:
    got = line("served %s", "it", request_id="r1", tokens=3)
    assert got["message"] == "served it"
    assert (got["role"], got["level"], got["logger"]) == ("api", "INFO", "x")
    assert (got["request_id"], got["tokens"]) == ("r1", 3)
    assert str(got["at"]).endswith("+00:00")


@pytest.mark.promise(25)
@pytest.mark.parametrize(
    "secret",
    ["pen_live_0123456789abcdefABCDEF", "pen_test_0a1b2c", "pen_admin_zzz999", "s3cret-token", "user:pa55"],
)
def test_secrets_are_masked_wherever_they_stand(secret: str) -> None:
    text = f"key {secret}"
    if secret == "s3cret-token":
        text = f"Authorization: Bearer {secret}"
    if secret == "user:pa55":
        text = f"postgresql://{secret}@127.0.0.1:5432/penstock"
    assert secret not in mask_secrets(text)
    assert secret not in json.dumps(line("%s", text, detail=text))


def test_an_exception_is_part_of_the_line_and_masked() -> None:
    try:
        raise ValueError("bad pen_live_abcdef")
    except ValueError:
        record = logging.getLogger("x").makeRecord("x", logging.ERROR, "f", 1, "no", (), sys.exc_info())
    got = json.loads(JsonFormatter("api").format(record))
    assert "ValueError: bad ***" in got["error"]


def test_hostile_text_stays_one_bounded_line() -> None:
    text = JsonFormatter("api").format(
        logging.makeLogRecord({"msg": "a\nb\ud800" + "x" * 100_000, "levelname": "INFO"})
    )
    assert "\n" not in text
    assert len(text) < 9_000


def test_setup_replaces_handlers_and_refuses_unknown_levels() -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        setup_logging("jobs", "debug")
        assert len(root.handlers) == 1
        assert root.level == logging.DEBUG
        with pytest.raises(ValueError, match="LOUD"):
            setup_logging("jobs", "loud")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        logging.captureWarnings(False)
