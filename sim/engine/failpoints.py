"""Fault injection for tests, set by flag, by environment, or by POST /failpoints."""

import msgspec

from core.errors import InvalidRequest


class Failpoints(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The faults to inject; all are off by default."""

    die_after_tokens: int | None = None
    """Number of further generated tokens after which the process ends at once; None = never."""
    stall_after_tokens: int | None = None
    """Number of further generated tokens after which generation stops while connections stay open; None = never."""
    error_next: int = 0
    """Number of next requests that receive status 500."""
    drop_next: int = 0
    """Number of next requests whose connection is closed before the first byte of the response."""
    no_usage: bool = False
    """Whether to omit usage from every answer."""
    step_delay_s: float = 0.0
    """Real seconds added to every step."""
    wake_s: float = 0.0
    """Real seconds that a wake takes until the weights are back."""
    wake_errors: int = 0
    """Number of next wakes that receive status 500."""
    garbled: bool = False
    """Whether the weights are wrong from the start of the process, so that every answer is nonsense."""
    wake_garbles: bool = False
    """Whether weights come back wrong, so that a woken engine answers with nonsense."""


def parse_failpoints(text: str) -> Failpoints:
    """Return the failpoints of a text such as `die_after_tokens=20,no_usage=true`.

    Raises InvalidRequest naming the invalid part.
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
