"""Addresses of servers as settings name them: host:port, several separated by commas."""

from typing import NamedTuple
from urllib.parse import urlsplit

from core.errors import InvalidRequest


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_addresses(text: str, variable: str) -> tuple[Address, ...]:
    """The addresses of a comma-separated text, each once, in the order given.

    An IPv6 address stands in brackets. Raises InvalidRequest, which names `variable`, for a part that is not host:port.
    """
    found: dict[Address, None] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            split = urlsplit(f"//{part}")
            host, port = split.hostname, split.port
        except ValueError:
            host = port = None
        if not host or not port or split.netloc != part or "@" in part:
            raise InvalidRequest(f"{variable} must look like host:port,host:port; {part!r} does not")
        found[Address(host, port)] = None
    return tuple(found)
