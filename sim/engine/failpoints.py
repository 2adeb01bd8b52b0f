"""Failures on order, for tests: set by flag, by environment, or by POST /failpoints."""

import msgspec

from core.errors import InvalidRequest


class Failpoints(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What is to go wrong. All off by default."""

    die_after_tokens: int | None = None
    """End the process at once when that many more tokens have been generated."""
    stall_after_tokens: int | None = None
    """Stop generating (connections stay open) when that many more tokens have been generated."""
    error_next: int = 0
    """Answer that many requests with status 500."""
    drop_next: int = 0
    """Close the connection of that many requests before the first byte of an answer."""
    no_usage: bool = False
    """Leave usage out of every answer."""
    step_delay_s: float = 0.0
    """Added to every step, in real seconds."""


def parse_failpoints(text: str) -> Failpoints:
    """Failpoints of a text such as `die_after_tokens=20,no_usage=true`.

    Raises InvalidRequest naming the wrong part.
    """
    values: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, separator, value = part.partition("=")
        if not separator:
            raise InvalidRequest(f"failpoint {part!r} must read name=value")
        values[name.strip()] = value.strip()
    try:
        return msgspec.convert(values, Failpoints, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(
            f"failpoints {text!r}: {error}; known: {', '.join(Failpoints.__struct_fields__)}"
        ) from None
