"""Where a key may be used from and what for, checked with the key's cached entry alone."""

from typing import Any

from core.client_address import ClientAddresses
from core.errors import PermissionDenied
from tenants.principal import Principal


class KeyRestrictions:
    """Checks the networks and scopes of keys. `addresses` finds clients behind trusted proxies."""

    def __init__(self, addresses: ClientAddresses) -> None:
        self._addresses = addresses

    def check(self, principal: Principal, scope: Any, use: str) -> Principal:
        """Return `principal` when it may do `use` (of tenants.names.KEY_SCOPES) from the client of the ASGI `scope`.

        Raises PermissionDenied.
        """
        if principal.scopes is not None and use not in principal.scopes:
            raise PermissionDenied(
                f"This API key may be used for {', '.join(sorted(principal.scopes))} only, not for {use}.",
                code="key_scope_denied",
            )
        if principal.networks is not None:
            address = self._addresses.exact(scope)
            if address is None or not any(address in network for network in principal.networks):
                raise PermissionDenied(
                    f"This API key may not be used from the address {address or 'of this client'}.",
                    code="key_address_denied",
                )
        return principal
