"""Counts of requests refused because their model has no price; kept in memory and written off the hot path."""

import logging
from uuid import UUID

import asyncpg

from billing.metering.dedicated_connection import DedicatedConnection

log = logging.getLogger(__name__)

MAX_KEYS = 256
"""Distinct (model, tier, tenant) counted between two writes; further ones are ignored."""

_COUNT = "SELECT penstock_count_unpriced($1, $2, $3, $4)"


class UnpricedCounts:
    """Counts of one process since its last write."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, UUID], int] = {}

    def __bool__(self) -> bool:
        return bool(self._counts)

    def add(self, model: str, tier: str, tenant_id: UUID) -> None:
        """Count one refused request."""
        key = (model, tier, tenant_id)
        if key in self._counts or len(self._counts) < MAX_KEYS:
            self._counts[key] = self._counts.get(key, 0) + 1

    async def write(self, connection: DedicatedConnection) -> None:
        """Add the counts to `unpriced_refusals`; the function ignores models that are not offered.

        Raises ConnectionUnavailable and keeps the counts while PostgreSQL is away. Counts that PostgreSQL refuses are
        dropped, because a statistic must not delay holds.
        """
        if not self._counts:
            return
        counts = dict(self._counts)
        try:
            await connection.fetch(
                _COUNT,
                [key[0] for key in counts],
                [key[1] for key in counts],
                [key[2] for key in counts],
                list(counts.values()),
            )
        except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            log.warning("%d refusals without a price were not counted: %s", sum(counts.values()), error)
        for key, count in counts.items():
            self._counts[key] -= count
            if not self._counts[key]:
                del self._counts[key]
