"""Cleans and validates names, reasons, email addresses, passwords and model names that people enter."""

import re
import unicodedata
from ipaddress import ip_network

from core.errors import InvalidRequest

NAME_LENGTH = 100
"""Most characters of a name."""
REASON_LENGTH = 500
"""Most characters of a reason."""
PASSWORD_MIN_LENGTH = 12
PASSWORD_MAX_LENGTH = 256
MAX_ALLOWED_MODELS = 100
MAX_PLACES = 16
"""Most regions, or classes of GPU, that a key or a request may name."""
_PLACE = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
MAX_NETWORKS = 50
KEY_SCOPES = ("inference", "models", "generations")
"""What a key can be restricted to: running requests, reading the models, reading its project's requests."""

_REFUSED_CATEGORIES = ("Cc", "Cs", "Co", "Cn", "Zl", "Zp")
_BIDI_CONTROLS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_EMAIL = re.compile(r"[a-z0-9.!#$%&'*+/=?^_`{|}~-]+@[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?", re.ASCII)
_MODEL = re.compile(r"[A-Za-z0-9._/:@+~=][A-Za-z0-9._/:@+~=-]{0,199}", re.ASCII)


def clean_name(value: str, param: str = "name") -> str:
    """`value` in NFC without surrounding blanks: 1 to 100 printable characters. Raises InvalidRequest."""
    return _clean(value, param, NAME_LENGTH)


def clean_reason(value: str, param: str = "reason") -> str:
    """The reason of an act, cleaned like a name: 1 to 500 printable characters. Raises InvalidRequest."""
    return _clean(value, param, REASON_LENGTH)


def _clean(value: str, param: str, max_length: int) -> str:
    if len(value) > 4 * max_length:
        raise InvalidRequest(f"{param} is longer than {max_length} characters", param=param)
    text = unicodedata.normalize("NFC", value).strip()
    if not text:
        raise InvalidRequest(f"{param} is empty; give 1 to {max_length} characters", param=param)
    if len(text) > max_length:
        raise InvalidRequest(f"{param} is longer than {max_length} characters ({len(text)})", param=param)
    for character in text:
        if character in _BIDI_CONTROLS or unicodedata.category(character) in _REFUSED_CATEGORIES:
            raise InvalidRequest(
                f"{param} contains the character U+{ord(character):04X}, which is not printable", param=param
            )
    return text


def slug_of(name: str) -> str:
    """A short name for URLs and commands: 1 to 60 lower-case ASCII letters, digits and single dashes.

    Raises InvalidRequest when `name` has no Latin letter or digit.
    """
    ascii_name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode("ascii").lower()
    slug = re.sub(r"[^a-z0-9]+", "-", ascii_name).strip("-")[:60].strip("-")
    if not slug:
        raise InvalidRequest(
            f"name {name!r} has no Latin letter or digit to make a short name of", param="name"
        )
    return slug


def clean_email(value: str, param: str = "email") -> str:
    """An email address in lower case. Raises InvalidRequest when `value` is none."""
    email = value.strip().lower()
    if len(email) > 254 or _EMAIL.fullmatch(email) is None:
        raise InvalidRequest("email is no mail address such as ada@example.com", param=param)
    return email


def check_password(value: str, param: str = "password") -> str:
    """`value` itself: 12 to 256 characters, no control characters. Raises InvalidRequest without the password."""
    if not PASSWORD_MIN_LENGTH <= len(value) <= PASSWORD_MAX_LENGTH:
        raise InvalidRequest(
            f"{param} must have {PASSWORD_MIN_LENGTH} to {PASSWORD_MAX_LENGTH} characters, not {len(value)}",
            param=param,
        )
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in value):
        raise InvalidRequest(f"{param} contains a control character", param=param)
    return value


def is_model_name(value: str) -> bool:
    """Whether `value` can name a model: a name of a catalog or hub, an adapter's name, or a path of a file; 1 to 200
    characters, none of them blank."""
    return _MODEL.fullmatch(value) is not None


def clean_models(values: list[str] | None, param: str = "allowed_models") -> list[str] | None:
    """Sorted, distinct model names, 1 to 100 of them; None = every model. Raises InvalidRequest."""
    if values is None:
        return None
    if not 1 <= len(values) <= MAX_ALLOWED_MODELS:
        raise InvalidRequest(
            f"{param} must name 1 to {MAX_ALLOWED_MODELS} models; leave it out to allow all", param=param
        )
    for value in values:
        if not is_model_name(value):
            raise InvalidRequest(f"{param} contains {value[:80]!r}, which is no model name", param=param)
    return sorted(set(values))


def clean_networks(values: list[str] | None, param: str = "networks") -> list[str] | None:
    """Sorted, distinct networks in CIDR notation, 1 to 50 of them; None = every one. Raises InvalidRequest."""
    if values is None:
        return None
    if not 1 <= len(values) <= MAX_NETWORKS:
        raise InvalidRequest(
            f"{param} must name 1 to {MAX_NETWORKS} networks; leave it out to allow all", param=param
        )
    found = set()
    for value in values:
        try:
            found.add(str(ip_network(value)))
        except ValueError:
            raise InvalidRequest(
                f"{param} contains {value[:80]!r}, which is no address or network such as 203.0.113.0/24",
                param=param,
            ) from None
    return sorted(found)


def clean_places(values: list[str] | None, param: str) -> list[str] | None:
    """Sorted, distinct names of regions or of classes of GPU in lower case, 1 to MAX_PLACES of them; None = any. Raises
    InvalidRequest."""
    if values is None:
        return None
    found = sorted({value.strip().lower() for value in values})
    if not 1 <= len(found) <= MAX_PLACES:
        raise InvalidRequest(f"{param} must have 1 to {MAX_PLACES} names; leave it out for any", param=param)
    for value in found:
        if _PLACE.fullmatch(value) is None:
            raise InvalidRequest(
                f"{param} contains {value[:40]!r}; a name has 1 to 63 letters, digits, '-', '_' and '.'",
                param=param,
            )
    return found


def clean_scopes(values: list[str] | None, param: str = "scopes") -> list[str] | None:
    """Sorted, distinct scopes of KEY_SCOPES, at least one; None = everything. Raises InvalidRequest."""
    if values is None:
        return None
    wrong = [value for value in values if value not in KEY_SCOPES]
    if wrong or not values:
        given = repr(wrong[0][:40]) if wrong else "an empty list"
        raise InvalidRequest(
            f"{param} must name some of {', '.join(KEY_SCOPES)}, not {given}; leave it out to allow all",
            param=param,
        )
    return sorted(set(values))
