"""Validates parameters against Stripe's lists: converts types, and refuses unknown and missing parameters."""

import re
from collections.abc import Iterable
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from sim.stripe.errors import Obj, invalid, missing, not_simulated, unknown
from sim.stripe.surface import parameters

_INTEGER = re.compile(r"-?\d{1,18}")
_DECIMAL = re.compile(r"-?\d{1,18}(\.\d{1,12})?")
_ALWAYS = frozenset({"expand", "limit", "starting_after", "ending_before"})
_MAX_METADATA = 50
_LARGEST = 99_999_999


def check(operation: str, given: Obj, supported: Iterable[str] | None) -> Obj:
    """Return `given` with converted types; `supported` names the parameters that the handler implements (None =
    all).

    Raises StripeError (400): parameter_unknown, parameter_missing, a wrong type, or a parameter that is
    Stripe's but not simulated here.
    """
    spec = parameters(operation)
    found = _object(given, spec, "")
    if supported is not None:
        known = _ALWAYS | set(supported)
        for name, value in found.items():
            if name not in known and value not in ("", None, [], {}):
                not_simulated(name)
    return found


def _object(given: Any, spec: dict[str, list[Any]], at: str) -> Obj:
    if not isinstance(given, dict):
        raise invalid("Invalid object", param=at)
    found = {}
    for name, value in given.items():
        path = f"{at}[{name}]" if at else name
        if name not in spec:
            raise unknown(path)
        found[name] = _value(value, spec[name][1:], path)
    for name, (required, *_) in spec.items():
        if required and name not in given:
            raise missing(f"{at}[{name}]" if at else name)
    return found


def _value(value: Any, spec: list[Any], at: str) -> Any:
    kind: str = spec[0]
    more: Any = spec[1] if len(spec) > 1 else None
    if value == "" and kind not in ("int", "bool", "decimal"):
        return value
    if kind == "list":
        return _list(value, more, at)
    if kind == "object":
        if isinstance(value, str) and _INTEGER.fullmatch(value) and "gte" in more:
            return int(value)
        return _object(value, more, at)
    if kind == "map":
        return _map(value, at)
    if isinstance(value, dict | list) and kind != "any":
        raise invalid(f"Invalid string: {at}", param=at)
    return _scalar(value, kind, more, at)


def _scalar(value: Any, kind: str, more: Any, at: str) -> Any:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if more and kind != "enum" and text in more:
        return text
    if kind == "int":
        if not _INTEGER.fullmatch(text):
            raise invalid(f"Invalid integer: {text[:80]}", param=at, code="parameter_invalid_integer")
        return int(text)
    if kind == "bool":
        if text not in ("true", "false"):
            raise invalid(f"Invalid boolean: {text[:80]}", param=at)
        return text == "true"
    if kind == "decimal":
        if not _DECIMAL.fullmatch(text):
            raise invalid(f"Invalid decimal: {text[:80]}", param=at, code="parameter_invalid_decimal")
        return text
    if kind == "enum" and text not in more:
        raise invalid(f"Invalid {at}: must be one of {', '.join(more[:20])}", param=at)
    if "\x00" in text:
        raise invalid(f"Invalid string: {at} has a NUL", param=at)
    return value if kind == "any" else text


def _list(value: Any, spec: list[Any], at: str) -> list[Any]:
    if isinstance(value, dict):
        if not all(key.isdecimal() and len(key) < 6 for key in value):
            raise invalid("Invalid array", param=at)
        value = [value[key] for key in sorted(value, key=int)]
    if not isinstance(value, list):
        raise invalid("Invalid array", param=at)
    return [_value(item, spec, f"{at}[{index}]") for index, item in enumerate(value)]


def _map(value: Any, at: str) -> dict[str, str]:
    if not isinstance(value, dict) or any(isinstance(each, dict | list) for each in value.values()):
        raise invalid("Invalid hash", param=at)
    return {str(key): each if isinstance(each, str) else str(each) for key, each in value.items()}


def cents(unit: str, quantity: Decimal | int, param: str = "amount") -> int:
    """Return unit price x quantity in whole cents, rounded half away from zero.

    Raises StripeError (400) above Stripe's maximum.
    """
    exact = Decimal(unit) * quantity
    if abs(exact) > _LARGEST:
        raise invalid("Amount must be no more than $999,999.99", param=param, code="amount_too_large")
    return int(exact.quantize(Decimal(1), ROUND_HALF_UP))


def merge_metadata(old: dict[str, str] | None, given: Any) -> dict[str, str]:
    """Return the metadata after an update: an empty value removes its key, an empty string removes all.

    Raises StripeError (400) beyond 50 keys, 40 characters a key, 500 a value (docs.stripe.com/api/metadata).
    """
    if given is None:
        return dict(old or {})
    if given == "":
        return {}
    found = dict(old or {})
    for key, value in given.items():
        if not key or len(key) > 40 or "[" in key or "]" in key:
            raise invalid(
                f"Metadata keys have 1 to 40 characters and no brackets: {key[:60]!r}", param="metadata"
            )
        if len(value) > 500:
            raise invalid(
                f"Metadata values can have up to 500 characters, but you passed in a value that is {len(value)}"
                f" characters. Invalid value: {value[:20]}...",
                param=f"metadata[{key}]",
            )
        found[key] = value
    found = {key: value for key, value in found.items() if value != ""}
    if len(found) > _MAX_METADATA:
        raise invalid(f"Metadata can have up to {_MAX_METADATA} keys", param="metadata")
    return found
