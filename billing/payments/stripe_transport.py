"""HTTP calls of one Stripe account through the official package, the only file that imports it.

The package repeats a call after a broken connection or a 5xx with the same idempotency key. This file waits when Stripe
answers 429, and translates every other error: Unavailable (try again later), PaymentRequired (the card was declined),
NotFound, InvalidRequest, Conflict (final).
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import aiohttp
import stripe

from billing.payments.idempotency import WRITE_UNKNOWN
from core.errors import Conflict, InvalidRequest, NotFound, PaymentRequired, PenstockError, Unavailable

T = TypeVar("T")

TIMEOUT_S = 10.0
"""Seconds for one HTTP request."""
MAX_RETRIES = 2
"""Repetitions of a failed call by the package."""
MAX_WAIT_S = 4.0
"""Seconds that a call waits in all for Retry-After of 429 answers; a longer wait raises Unavailable."""
PAGE_ROWS = 100
"""Rows of one page of a list (Stripe's limit)."""


class TooManyRows(Unavailable):
    """A list has more rows than the caller reads at once."""


class StripeTransport:
    """Calls of one Stripe account, on one event loop; `close` ends its connections."""

    def __init__(
        self,
        api_key: str,
        base_url: str = "",
        *,
        timeout_s: float = TIMEOUT_S,
        max_retries: int = MAX_RETRIES,
        max_wait_s: float = MAX_WAIT_S,
    ) -> None:
        self._api_key = api_key
        self._base_url = base_url.rstrip("/")
        self._timeout_s = timeout_s
        self._max_retries = max_retries
        self._max_wait_s = max_wait_s
        self._clients: list[stripe.StripeClient] = []
        self._transport: stripe.HTTPClient | None = None

    def _client(self, key: str | None = None) -> stripe.StripeClient:
        """The client, created at the first call because connections need the running loop; `key` overrides ours."""
        if self._transport is None:
            plain = {"connector": aiohttp.TCPConnector()} if self._base_url.startswith("http://") else {}
            timeout = aiohttp.ClientTimeout(total=self._timeout_s)
            self._transport = stripe.AIOHTTPClient(timeout=timeout, **plain)
        if key is None and self._clients:
            return self._clients[0]
        base: Any = {"api": self._base_url, "meter_events": self._base_url} if self._base_url else {}
        client = stripe.StripeClient(
            key or self._api_key,
            base_addresses=base,
            max_network_retries=self._max_retries,
            http_client=self._transport,
        )
        if key is None:
            self._clients.append(client)
        return client

    async def close(self) -> None:
        """Close the connections."""
        if self._transport is not None:
            await self._transport.close_async()  # type: ignore[no-untyped-call]
            self._transport = None
            self._clients.clear()

    async def _call(self, make: Callable[[], Awaitable[T]]) -> T:
        waited_s = 0.0
        while True:
            try:
                return await make()
            except stripe.RateLimitError as error:
                pause_s = _retry_after(error)
                if waited_s + pause_s > self._max_wait_s:
                    raise Unavailable(
                        "Stripe asks us to come back later", code="stripe_busy", retry_after_s=pause_s
                    ) from error
                waited_s += pause_s
                await asyncio.sleep(pause_s)
            except stripe.StripeError as error:
                raise _translated(error) from error
            except (aiohttp.ClientError, TimeoutError) as error:
                raise Unavailable("Stripe's answer broke off", code="stripe_away") from error

    async def _request(self, method: Callable[..., Awaitable[Any]], *args: Any, key: str = "") -> Any:
        """The object that a call answers, as a dictionary; `key` is its idempotency key."""
        options = {"options": {"idempotency_key": key}} if key else {}
        found = await self._call(lambda: method(*args, **options))
        return found.to_dict()

    async def _list(
        self, method: Callable[..., Awaitable[Any]], *args: Any, at_most: int = 100_000, **params: Any
    ) -> list[Any]:
        """Every row of a list, page by page. Raises TooManyRows beyond about `at_most`."""
        rows: list[Any] = []
        while True:
            page = await self._request(method, *args, {"limit": PAGE_ROWS, **params})
            rows += page["data"]
            if not page.get("has_more") or not page["data"]:
                return rows
            if len(rows) >= at_most:
                raise TooManyRows(f"Stripe lists more than {at_most:,} rows: ask for a shorter period")
            params["starting_after"] = page["data"][-1]["id"]


def _retry_after(error: stripe.StripeError) -> float:
    """Seconds in the Retry-After header of a 429 answer; 1 without it."""
    text = (error.headers or {}).get("retry-after") or (error.headers or {}).get("Retry-After") or ""
    return int(text) if text.isdigit() and int(text) else 1


def _translated(error: stripe.StripeError) -> PenstockError:
    """Our error for an error of the stripe package."""
    text = error.user_message or str(error)
    body = error.error
    details = {"stripe_code": error.code or "", "request": error.request_id or ""}
    if isinstance(error, stripe.CardError):
        intent = getattr(body, "payment_intent", None) if body is not None else None
        if intent is not None:
            details["payment_intent"] = str(intent["id"])
        return PaymentRequired(text, code="card_declined", details=details)
    if isinstance(error, stripe.IdempotencyError):
        return Conflict(text, code="stripe_idempotency", details=details)
    if isinstance(error, stripe.AuthenticationError | stripe.PermissionError):
        return Unavailable("Stripe refuses our key: look at STRIPE_API_KEY", code="stripe_key")
    if error.http_status == 409:
        return Unavailable("Stripe is busy with the same call", code="stripe_busy", details=details)
    if isinstance(error, stripe.InvalidRequestError):
        if error.http_status == 404 or error.code == "resource_missing":
            return NotFound(text, code="stripe_not_found", details=details)
        return InvalidRequest(text, code="stripe_refused", details=details)
    code = "stripe_away" if error.http_status in (None, 502, 503, 504) else WRITE_UNKNOWN
    return Unavailable(f"Stripe is away: {text[:200]}", code=code, details=details)
