"""Prices as customers see them, from memory. What a request costs is decided by the database alone (penstock_hold)."""

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from billing.pricing.prices import PriceView, list_prices, price_state
from core.db import Database
from core.errors import Unavailable
from core.polled_snapshot import PolledSnapshot

POLL_S = 10.0
"""Seconds between two looks at the price books, whose versions are read again when they have changed."""

PricesByTier = dict[str, PriceView]


class PriceBook(PolledSnapshot):
    """All current and scheduled price versions, of contracts too. None is shown when they are not `fresh`."""

    def __init__(
        self, database: Database, max_age_s: float, *, now: Callable[[], float], today: Callable[[], datetime]
    ) -> None:
        """`now` returns monotonic seconds, `today` the time of day. Prices older than `max_age_s` are not shown."""
        super().__init__(database, "prices", task="price-book", every_s=POLL_S, max_age_s=max_age_s, now=now)
        self._today = today
        self._state: object = None
        self._versions: dict[UUID | None, list[PriceView]] = {}

    async def _read(self, connection: AsyncConnection) -> None:
        """Read the versions again if they have changed."""
        state = await price_state(connection)
        if state != self._state:
            versions: dict[UUID | None, list[PriceView]] = {}
            for version in await list_prices(connection):
                versions.setdefault(version.tenant_id, []).append(version)
            self._versions, self._state = versions, state

    def of(self, tenant_id: UUID | None) -> dict[str, PricesByTier]:
        """The prices that hold now, by model and tier; an organisation's own go before the list. None = the list.

        Raises Unavailable when they were not read for too long.
        """
        if not self.fresh:
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

    def tiers(self, tenant_id: UUID, model: str, adapter: str = "") -> Collection[str]:
        """The tiers in which a model, or an adapter of it, has a price for an organisation now.

        Raises Unavailable as `of` does.
        """
        return priced_as(self.of(tenant_id), model, adapter)


def priced_as(prices: Mapping[str, PricesByTier], model: str, adapter: str) -> PricesByTier:
    """The prices of requests for an adapter of a model, by tier: its own go before the model's."""
    return {**prices.get(model, {}), **prices.get(adapter, {})}


def _holds(version: PriceView, now: datetime) -> bool:
    ends = version.effective_to
    return datetime.fromisoformat(version.effective_from) <= now and (
        ends is None or now < datetime.fromisoformat(ends)
    )
