"""Parses bodies and query strings: form-encoded with brackets (v1) and JSON (v2), with limits on size, fields
and depth.
"""

import re
from typing import Any
from urllib.parse import unquote_plus

import msgspec

from sim.stripe.errors import Obj, StripeError, invalid

MAX_BODY = 4 * 2**20
"""Maximum size of a request body in bytes."""
_MAX_FIELDS = 10_000
_MAX_DEPTH = 8
_KEY = re.compile(r"[^\[\]]+(\[[^\[\]]*\])*")


def decode(text: str) -> Obj:
    """Return `a[b][0]=1&a[b][]=2` as nested dicts; list positions stay keys ("0", "1") until the parameter's
    type is known.

    Raises StripeError (400) for malformed brackets and for too many or too deeply nested fields.
    """
    found: Obj = {}
    fields = text.split("&") if text else []
    if len(fields) > _MAX_FIELDS:
        raise invalid(f"Invalid request: more than {_MAX_FIELDS} fields")
    for field in fields:
        name, _, value = field.partition("=")
        try:
            key, value = unquote_plus(name, errors="strict"), unquote_plus(value, errors="strict")
        except UnicodeDecodeError:
            raise invalid("Invalid UTF-8 in the request") from None
        if not _KEY.fullmatch(key):
            raise invalid(f"Invalid parameter name: {key[:80]!r}")
        _put(found, key.replace("]", "").split("["), value)
    return found


def _put(into: Obj, path: list[str], value: str) -> None:
    if len(path) > _MAX_DEPTH:
        raise invalid(f"Invalid request: {path[0]} is nested too deep")
    for part in path[:-1]:
        into = into.setdefault(part or str(len(into)), {})
        if not isinstance(into, dict):
            raise invalid(f"Invalid request: {path[0]} is both a value and an object")
    last = path[-1] or str(len(into))
    if isinstance(into.get(last), dict):
        raise invalid(f"Invalid request: {path[0]} is both a value and an object")
    into[last] = value


def decode_json(body: bytes) -> Obj:
    """Return a v2 body as an object. Raises StripeError (400) for anything but a JSON object."""
    try:
        found: Any = msgspec.json.decode(body or b"{}")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise StripeError("The request body is not valid JSON", code="invalid_json", kept=False) from None
    if not isinstance(found, dict):
        raise StripeError("The request body must be a JSON object", code="invalid_json", kept=False)
    return found
