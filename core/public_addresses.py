"""Addresses of the public internet, for requests to servers that customers name (SSRF)."""

import errno
import socket
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Any

_NAT64 = IPv6Network("64:ff9b::/96")


class AddressRefused(OSError):
    """A connection to an address that is not public."""


def parse_hosts(text: str) -> frozenset[str]:
    """The operator's allow-list from comma-separated host names or addresses."""
    return frozenset(host.strip().lower() for host in text.split(",") if host.strip())


def is_public(address: str) -> bool:
    """Whether an IP address is public: not loopback, private, link-local, reserved or multicast, also when embedded
    in IPv6 (mapped, 6to4, Teredo, NAT64)."""
    try:
        found: IPv4Address | IPv6Address = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, IPv6Address):
        if found.sixtofour is not None or found.teredo is not None:
            return False
        if found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        elif found in _NAT64:
            found = IPv4Address(int(found) & 0xFFFFFFFF)
    return found.is_global and not found.is_multicast and not found.is_reserved


def guarded_socket(info: Any) -> socket.socket:
    """The socket of a connection, for aiohttp. Raises AddressRefused when its address is not public."""
    family, kind, protocol, _, address = info
    if not is_public(str(address[0])):
        # The message omits the address: customers must not learn what our resolver returns for internal names.
        raise AddressRefused(errno.EACCES, "the name does not lead to the public internet")
    return socket.socket(family=family, type=kind, proto=protocol)
