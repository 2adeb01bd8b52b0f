"""Times on the command line, such as 90m or 2h."""

import re
from datetime import timedelta

from core.errors import InvalidRequest

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def parse_duration(text: str, param: str) -> timedelta:
    """A number with s, m, h or d behind it. Raises InvalidRequest."""
    found = re.fullmatch(r"(\d{1,6})([smhd])", text.strip())
    if found is None:
        raise InvalidRequest(f"{text[:40]!r} is no time; write it as 90m, 2h or 3d", param=param)
    return timedelta(**{_UNITS[found[2]]: int(found[1])})
