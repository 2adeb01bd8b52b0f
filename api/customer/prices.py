"""Prices as customers see them, from memory. What a request costs is decided by the database alone (penstock_hold)."""

import asyncio
import logging
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from uuid import UUID

from billing.pricing.prices import PriceView, list_prices, price_state
from core.db import Database
from core.errors import Unavailable
from core.supervise import supervise
from tenants.keys import DATABASE_ERRORS

log = logging.getLogger(__name__)

POLL_S = 10.0
"""Seconds between two looks at the price books, whose versions are read again when they have changed."""

PricesByTier = dict[str, PriceView]


class PriceBook:
    """All current and scheduled price versions, of contracts too, polled; the last ones stay when a poll fails."""

    def __init__(
        self, database: Database, max_age_s: float, *, now: Callable[[], float], today: Callable[[], datetime]
    ) -> None:
        """`now` returns monotonic seconds, `today` the time of day. Prices older than `max_age_s` are not shown."""
        self._database = database
        self._max_age_s = max_age_s
        self._now = now
        self._today = today
        self._read_at: float | None = None
        self._state: object = None
        self._versions: dict[UUID | None, list[PriceView]] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the prices, then poll. Raises what `refresh` raises."""
        await self.refresh()
        self._task = supervise("price-book", self._poll)

    async def close(self) -> None:
        """Stop polling."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def refresh(self) -> None:
        """Read the prices now, if they have changed. Raises errors of the database when it is unavailable."""
        began = self._now()
        async with self._database.read() as connection:
            state = await price_state(connection)
            if state != self._state:
                versions: dict[UUID | None, list[PriceView]] = {}
                for version in await list_prices(connection):
                    versions.setdefault(version.tenant_id, []).append(version)
                self._versions, self._state = versions, state
        self._read_at = began

    def of(self, tenant_id: UUID | None) -> dict[str, PricesByTier]:
        """The prices that hold now, by model and tier; an organisation's own go before the list. None = the list.

        Raises Unavailable when they were not read for too long.
        """
        if self._read_at is None or self._now() - self._read_at > self._max_age_s:
            raise Unavailable(
                "The prices cannot be read at the moment. Try again shortly.", retry_after_s=POLL_S
            )
        now = self._today().astimezone(UTC)
        found: dict[str, PricesByTier] = {}
        for owner in (None,) if tenant_id is None else (None, tenant_id):
            for version in self._versions.get(owner, ()):
                if _holds(version, now):
                    found.setdefault(version.model, {})[version.tier] = version
        return found

    def tiers(self, tenant_id: UUID, model: str) -> Collection[str]:
        """The tiers in which a model has a price for an organisation now. Raises Unavailable as `of` does."""
        return self.of(tenant_id).get(model, {})

    async def _poll(self) -> None:
        failing = False
        while True:
            await asyncio.sleep(POLL_S)
            try:
                await self.refresh()
                failing = False
            except DATABASE_ERRORS as error:
                if not failing:
                    log.warning("prices cannot be read; the last known ones are shown: %s", error)
                failing = True


def _holds(version: PriceView, now: datetime) -> bool:
    ends = version.effective_to
    return datetime.fromisoformat(version.effective_from) <= now and (
        ends is None or now < datetime.fromisoformat(ends)
    )
