"""By which connections to schedulers clients speak TLS, and whom they trust."""

import ssl
from collections.abc import Awaitable, Callable

from core.addresses import Address, takes_tls
from core.private_tls import client_context

Authority = Callable[[], Awaitable[bytes]]
"""Returns the authority's certificate in PEM."""


class ClientTls:
    """The contexts of a client that connects to schedulers. The authority is asked for when it is first needed."""

    def __init__(self, setting: str, authority: Authority) -> None:
        self._setting, self._authority = setting, authority
        self._context: ssl.SSLContext | None = None

    async def context(self, address: Address) -> ssl.SSLContext | None:
        """The context for a connection to `address`; None = plain TCP. Raises what the authority raises."""
        if not takes_tls(address, self._setting):
            return None
        if self._context is None:
            self._context = client_context(await self._authority())
        return self._context

    def forget(self) -> None:
        """A certificate was not trusted: ask for the authority again."""
        self._context = None
