"""What is wrong with a body, in our own words: msgspec's messages name types of a program, not of JSON."""

import re
from collections.abc import Callable

import msgspec

_PATH = re.compile(r" - at `(?:key` in `)?\$?(.*)`$")
_TYPES = {
    "array": "an array", "bool": "a boolean", "float": "a number", "int": "an integer", "null": "null",
    "object": "an object", "str": "a string",
}  # fmt: skip
_BOUNDS = {"<=": "at most", ">=": "at least", "<": "less than", ">": "more than", "==": "exactly"}
_UNITS = {"str": "character", "array": "entry", "object": "member"}
_PLURALS = {"character": "characters", "entry": "entries", "member": "members"}


class Complaint(msgspec.Struct, frozen=True):
    """What is wrong with one field."""

    text: str
    """A sentence that names the field."""
    param: str | None
    """The field's path; None = the body itself."""
    too_large: bool = False
    """Whether the field has more than a bound allows."""


def complaint_of(error: msgspec.ValidationError, place: str = "") -> Complaint:
    """Return what is wrong with a body that is JSON. `place`: the path of the part that was decoded; empty = all."""
    message = str(error)
    found = _PATH.search(message)
    path = (place + (found[1] if found else "")).removeprefix(".")
    text = message[: found.start()] if found else message
    complaint = Complaint(f"{_named(path)} is not valid.", path or None)
    for pattern, write in _TABLE:
        if match := pattern.fullmatch(text):
            complaint = write(match, path)
            break
    if "`key` in `" in message:
        return msgspec.structs.replace(complaint, text=f"A name in {complaint.text}")
    return complaint


def _named(path: str) -> str:
    return f"'{path}'" if path else "The body"


def _member(match: re.Match[str], path: str) -> str:
    return f"{path}.{match[1]}" if path else match[1]


def _missing(match: re.Match[str], path: str) -> Complaint:
    member = _member(match, path)
    return Complaint(f"'{member}' is missing; add it.", member)


def _unknown(match: re.Match[str], path: str) -> Complaint:
    member = _member(match, path)
    return Complaint(f"'{member}' is not a known field; leave it out.", member)


def _types(names: str) -> str:
    known = [_TYPES.get(name, name) for name in names.split(" | ")]
    return " or ".join([", ".join(known[:-1]), known[-1]]) if len(known) > 1 else known[0]


def _type(match: re.Match[str], path: str) -> Complaint:
    text = f"{_named(path)} must be {_types(match[1])}, but is {_types(match[2])}."
    return Complaint(text, path or None)


def _length(match: re.Match[str], path: str) -> Complaint:
    kind, bound, count = match.groups()
    unit = _UNITS.get(kind, "entry")
    text = f"{_named(path)} must have {_BOUNDS[bound]} {int(count):,} {unit if count == '1' else _PLURALS[unit]}."
    return Complaint(text, path or None, too_large=bound == "<=")


def _bound(match: re.Match[str], path: str) -> Complaint:
    kind, bound, limit = match.groups()
    number = limit.removesuffix(".0")
    return Complaint(
        f"{_named(path)} must be {_TYPES.get(kind, kind)} of {_BOUNDS[bound]} {number}.", path or None
    )


def _pattern(match: re.Match[str], path: str) -> Complaint:
    expression = match[1].replace("\\\\", "\\")
    return Complaint(f"{_named(path)} must match the regular expression '{expression}'.", path or None)


def _value(match: re.Match[str], path: str) -> Complaint:
    return Complaint(f"{_named(path)} does not take the value {match[1]}.", path or None)


def _range(match: re.Match[str], path: str) -> Complaint:
    return Complaint(f"{_named(path)} is a number out of range.", path or None)


_TABLE: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], str], Complaint]], ...] = tuple(
    (re.compile(pattern), write)
    for pattern, write in (
        (r"Object missing required field `(.*)`", _missing),
        (r"Object contains unknown field `(.*)`", _unknown),
        (r"Expected `([^`]*)`, got `([^`]*)`", _type),
        (r"Expected `(\w+)` of length (<=|>=|==) (\d+)", _length),
        (r"Expected `(\w+)` (<=|>=|<|>) (\S+)", _bound),
        (r"Expected `str` matching regex '(.*)'", _pattern),
        (r"Invalid (?:enum )?value (.*)", _value),
        (r"(?:Integer value|Number) out of range", _range),
    )
)
"""msgspec's messages and what is said instead."""


def invalid_json(error: Exception) -> str:
    """Return what is wrong with a body that is not JSON. `error`: msgspec.DecodeError or UnicodeDecodeError."""
    if isinstance(error, UnicodeDecodeError):
        return "The body is not valid JSON: it is not UTF-8."
    if "truncated" in str(error):
        return "The body is not valid JSON: it ends too early."
    at = re.search(r"\(byte (\d+)\)", str(error))
    return f"The body is not valid JSON{f', at byte {at[1]}' if at else ''}."
