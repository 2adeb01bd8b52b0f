"""What tests of tokens and templates share."""

from datetime import UTC, datetime
from typing import Any

START, END, BOS = "<|im_start|>", "<|im_end|>", "<s>"
Json = dict[str, Any]


def day() -> datetime:
    return datetime(2026, 3, 1, tzinfo=UTC)
