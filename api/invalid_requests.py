"""What is wrong with a request to a route that FastAPI serves, in our own words instead of pydantic's."""

from collections.abc import Mapping, Sequence
from typing import Any

from core.errors import InvalidRequest

_TEXTS = {
    "missing": "{name} is missing; add it.",
    "extra_forbidden": "{name} is not a known field; leave it out.",
    "string_too_short": "{name} must have at least {min_length} characters.",
    "string_too_long": "{name} may have at most {max_length} characters.",
    "string_pattern_mismatch": "{name} must match the regular expression '{pattern}'.",
    "too_short": "{name} must have at least {min_length} entries.",
    "too_long": "{name} may have at most {max_length} entries.",
    "greater_than": "{name} must be more than {gt}.",
    "greater_than_equal": "{name} must be at least {ge}.",
    "less_than": "{name} must be less than {lt}.",
    "less_than_equal": "{name} may be at most {le}.",
    "literal_error": "{name} must be one of {expected}.",
    "enum": "{name} must be one of {expected}.",
    "value_error": "{name}: {error}.",
    "json_invalid": "The body is not valid JSON.",
}
"""By pydantic's type of an error: what is said, with the members of its context."""
_KINDS = {
    "string": "a text",
    "int": "an integer",
    "float": "a number",
    "decimal": "a decimal number",
    "bool": "true or false",
    "list": "a list",
    "dict": "an object",
    "model": "an object",
    "uuid": "a UUID",
    "datetime": "a time such as 2026-01-31T12:00:00Z",
    "date": "a date such as 2026-01-31",
}
"""By the first word of the other types of errors: what the value must be."""


def invalid_request(errors: Sequence[Mapping[str, Any]]) -> InvalidRequest:
    """Return the error for the first of pydantic's `errors`, with the field's path as `param`."""
    first: Mapping[str, Any] = errors[0] if errors else {"type": "", "loc": ()}
    kind, place = first["type"], first["loc"][1:]
    if kind == "json_invalid":
        return InvalidRequest(_TEXTS[kind], code="invalid_json")
    param = ".".join(str(part) for part in place) or None
    name = f"'{param}'" if param else "The request" if not first["loc"] else f"The {first['loc'][0]}"
    text = _TEXTS.get(kind)
    if text is not None:
        return InvalidRequest(text.format_map({"name": name, **first.get("ctx", {})}), param=param)
    wanted = _KINDS.get(kind.partition("_")[0])
    return InvalidRequest(f"{name} must be {wanted}." if wanted else f"{name} is not valid.", param=param)
