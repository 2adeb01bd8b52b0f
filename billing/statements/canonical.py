"""Canonical JSON (RFC 8785): one byte sequence per value, so that a signature can be verified from the value.

Numbers are integers within +-(2^53 - 1); amounts are decimal strings, so the RFC's rules for floats do not apply.
"""

import json
from typing import Any

MAX_INTEGER = 2**53 - 1
MAX_DEPTH = 32


def canonical(value: Any) -> bytes:
    """`value` as canonical UTF-8: keys ordered by UTF-16 code units, no whitespace.

    Raises ValueError for a float, an integer beyond MAX_INTEGER, a lone surrogate, a key that is not text, or more than
    MAX_DEPTH levels.
    """
    ordered = _ordered(value, 0)
    return json.dumps(ordered, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8")


def _ordered(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise ValueError(f"deeper than {MAX_DEPTH} levels")
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        if abs(value) > MAX_INTEGER:
            raise ValueError(f"{value} is beyond what every JSON reader keeps exactly; write it as text")
        return value
    if isinstance(value, list | tuple):
        return [_ordered(one, depth + 1) for one in value]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise ValueError("a key is no text")
        keys = sorted(value, key=lambda key: key.encode("utf-16-be"))
        return {key: _ordered(value[key], depth + 1) for key in keys}
    raise ValueError(f"{type(value).__name__} has no place in canonical JSON; write it as text")


def parse(text: bytes) -> Any:
    """The value of canonical JSON text. Raises ValueError for any other text."""
    try:
        value = json.loads(text.decode("utf-8"), parse_float=_no_float, parse_constant=_no_float)
    except RecursionError:
        raise ValueError("too deep") from None
    if canonical(value) != text:
        raise ValueError("it is not in canonical form: it was reformatted or changed")
    return value


def _no_float(text: str) -> Any:
    raise ValueError(f"a number that is no integer: {text[:40]}")
