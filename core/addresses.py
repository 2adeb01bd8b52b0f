"""Addresses of servers as settings name them: host:port, several separated by commas."""

from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

from core.errors import InvalidRequest

_ANY = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound


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


def is_loopback(host: str) -> bool:
    """Whether an address or name is this machine's own. Names other than `localhost` are not resolved."""
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost"
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def takes_tls(address: Address, setting: str) -> bool:
    """Whether a connection to a scheduler is by TLS, by the setting `scheduler_tls`.

    The addresses that stand for all of a machine's reach its own servers over loopback.
    """
    return setting == "remote" and not is_loopback(address.host) and address.host not in _ANY
