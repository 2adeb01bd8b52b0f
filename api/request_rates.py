"""Rates of this process that need no organisation: invalid requests per client address, and requests beside inference.

Both are counted in this process alone; with N processes the limits are N times as high.
"""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from starlette.types import ASGIApp, Receive, Scope, Send

from api import credentials
from api.edges import send_error
from core.client_address import ClientAddresses
from core.errors import RateLimited
from core.leaky_buckets import LeakyBuckets

EXEMPT = frozenset({"/health", "/healthz", "/readyz", "/webhooks/stripe"})
"""Paths without a rate: probes, and Stripe's events, which are signed."""


class InvalidRequestRate:
    """Invalid requests per client address, whichever keys they carry.

    While an address is above its limit, the keys that sent invalid requests from it are refused before their bodies are
    read. Other keys from there, such as those of the same office, are not.
    """

    def __init__(self, per_min: int, addresses: ClientAddresses, now: Callable[[], float]) -> None:
        """`per_min`: 0 = no limit. `now` returns monotonic seconds."""
        self._addresses = addresses
        self._by_address = LeakyBuckets(max(1, per_min), now)
        self._by_sender = LeakyBuckets(1, now)
        """One bucket per address and key, which is empty a minute after its first invalid request."""
        self._enabled = per_min > 0

    def count(self, scope: Any, key_id: UUID) -> None:
        """Count an invalid request."""
        address = self._addresses.of(scope) if self._enabled else ""
        if address:
            self._by_address.fill(address)
            if not self._by_sender.level((address, key_id)):
                self._by_sender.fill((address, key_id))

    def check(self, scope: Any, key_id: UUID) -> None:
        """Raise RateLimited when the address is above its limit and the key has contributed."""
        if not self._by_address:
            return
        address = self._addresses.of(scope)
        level, limit = self._by_address.level(address), self._by_address.per_min
        if level + 1 > limit and self._by_sender.level((address, key_id)):
            raise RateLimited(
                f"The address sends more than {limit} invalid requests per minute; correct them and try again later.",
                code="too_many_invalid_requests",
                details={"scope": "address", "kind": "invalid_requests_per_min", "limit": limit},
                retry_after_s=self._by_address.wait_s(level),
            )


class ListingRate:
    """An ASGI middleware: a rate for each credential, or address without one, on all routes beside inference."""

    def __init__(
        self, app: ASGIApp, per_min: int, addresses: ClientAddresses, now: Callable[[], float]
    ) -> None:
        """`per_min`: 0 = no limit. `now` returns monotonic seconds."""
        self._app = app
        self._addresses = addresses
        self._buckets = LeakyBuckets(max(1, per_min), now)
        self._enabled = per_min > 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it with 429 before its credential is looked up."""
        if scope["type"] == "http" and self._enabled and scope["path"] not in EXEMPT:
            subject = self._subject(scope)
            level, limit = self._buckets.level(subject), self._buckets.per_min
            if level + 1 > limit:
                await _refuse(send, limit, self._buckets.wait_s(level))
                return
            self._buckets.fill(subject)
        await self._app(scope, receive, send)

    def _subject(self, scope: Scope) -> object:
        for name, value in scope["headers"]:
            # However the scheme is written. A forged credential has a bucket, too: the address alone would not tell its
            # users apart.
            if name == b"authorization":
                return hash(value.partition(b" ")[2].strip())
            if name == credentials.API_KEY:
                return hash(value.strip())
        return self._addresses.of(scope)


async def _refuse(send: Send, limit: int, wait_s: float) -> None:
    error = RateLimited(
        f"More than {limit} requests per minute; try again in {wait_s:.3g} s.",
        details={"scope": "credential", "kind": "listings_per_min", "limit": limit},
        retry_after_s=max(wait_s, 0.001),
    )
    await send_error(send, error)
