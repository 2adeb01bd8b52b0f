"""The address of a request's client, behind proxies that are trusted to name it."""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

_IPV6_BITS = 64
"""Prefix of an IPv6 address that belongs to one customer of a provider."""


class ClientAddresses:
    """Finds client addresses. `trusted`: addresses and networks of proxies, separated by commas."""

    def __init__(self, trusted: str) -> None:
        """Raises ValueError when `trusted` is not a list of addresses and networks."""
        parts = [part.strip() for part in trusted.split(",")]
        self._trusted = [ip_network(part, strict=False) for part in parts if part]

    @property
    def trusted(self) -> list[str]:
        """The networks of the trusted proxies."""
        return [str(network) for network in self._trusted]

    def of(self, scope: Any) -> str:
        """The address of an ASGI scope's client: an IPv4 address, or the /64 of an IPv6 address; empty = unknown."""
        peer = self.exact(scope)
        if isinstance(peer, IPv6Address):
            return str(IPv6Network((peer, _IPV6_BITS), strict=False))
        return "" if peer is None else str(peer)

    def exact(self, scope: Any) -> IPv4Address | IPv6Address | None:
        """The address of an ASGI scope's client; None = unknown.

        `X-Forwarded-For` counts when the connection comes from a trusted proxy: its last address that is no such proxy.
        """
        peer = _parse((scope.get("client") or ("",))[0])
        if peer is not None and self._is_trusted(peer):
            for text in reversed(_forwarded(scope["headers"])):
                named = _parse(text)
                if named is None:
                    break
                peer = named
                if not self._is_trusted(named):
                    break
        return peer

    def _is_trusted(self, address: IPv4Address | IPv6Address) -> bool:
        return any(address in network for network in self._trusted)


def _forwarded(headers: Sequence[tuple[bytes, bytes]]) -> list[str]:
    values = [value.decode("latin-1") for name, value in headers if name == b"x-forwarded-for"]
    return [part.strip() for value in values for part in value.split(",")]


def _parse(text: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(text)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found
