"""Prices as customers see them, from memory. What a request costs is decided by the database alone (penstock_hold)."""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from uuid import UUID

from billing.pricing.prices import PriceView, list_prices
from core.db import Database
from core.errors import Unavailable
from tenants.keys import DATABASE_ERRORS
from tenants.principal import Principal

log = logging.getLogger(__name__)

FRESH_S = 10.0
"""Seconds after which an organisation's prices are read again, while the last ones are shown."""
TIMEOUT_S = 2.0
"""Seconds that the first caller of an organisation waits for its prices."""
MAX_TENANTS = 10_000
"""Organisations whose prices are kept; the oldest are dropped."""


class PriceCache:
    """The price versions of each organisation that asked, its contract's included; one read of each at a time."""

    def __init__(self, database: Database, now: Callable[[], float], max_age_s: float) -> None:
        """`now` returns monotonic seconds. Prices that were last read `max_age_s` seconds ago are not shown."""
        self._max_age_s = max_age_s
        self._database = database
        self._now = now
        self._known: dict[UUID, tuple[float, list[PriceView]]] = {}
        self._reading: dict[UUID, asyncio.Task[list[PriceView]]] = {}

    async def of(self, principal: Principal) -> dict[str, PriceView]:
        """The current price per model; a contract price takes precedence over the list price.

        Raises Unavailable when the organisation's prices were never read, or not for too long, and PostgreSQL does not
        answer in time.
        """
        known = self._known.get(principal.tenant_id)
        if known is None or self._now() - known[0] > self._max_age_s:
            return _current(await self._wait(self._read(principal.tenant_id)), principal.tier)
        if self._now() - known[0] >= FRESH_S:
            self._read(principal.tenant_id)
        return _current(known[1], principal.tier)

    def _read(self, tenant_id: UUID) -> "asyncio.Task[list[PriceView]]":
        reading = self._reading.get(tenant_id)
        if reading is None:
            reading = self._reading[tenant_id] = asyncio.create_task(self._load(tenant_id))
            reading.add_done_callback(_log_failure)
        return reading

    async def _load(self, tenant_id: UUID) -> list[PriceView]:
        try:
            async with self._database.read() as connection:
                versions = await list_prices(connection, tenant_id=tenant_id)
        finally:
            del self._reading[tenant_id]
        self._known.pop(tenant_id, None)
        if len(self._known) >= MAX_TENANTS:
            del self._known[next(iter(self._known))]
        self._known[tenant_id] = (self._now(), versions)
        return versions

    async def _wait(self, reading: "asyncio.Task[list[PriceView]]") -> list[PriceView]:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await asyncio.shield(reading)  # do not cancel a running query
        except DATABASE_ERRORS as error:
            raise Unavailable(
                "The prices cannot be read at the moment. Try again shortly.", retry_after_s=1.0
            ) from error


def _log_failure(reading: "asyncio.Task[list[PriceView]]") -> None:
    if not reading.cancelled() and (error := reading.exception()) is not None:
        log.warning("prices cannot be read; the last known ones are shown: %s", error or type(error).__name__)


def _current(versions: list[PriceView], tier: str) -> dict[str, PriceView]:
    now = datetime.now(UTC)
    found: dict[str, PriceView] = {}
    for version in versions:
        if version.tier != tier or datetime.fromisoformat(version.effective_from) > now:
            continue
        if version.model not in found or version.tenant_id is not None:
            found[version.model] = version
    return found
