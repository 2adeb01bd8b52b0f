"""Which organisations used which models lately: who has to hear that a model goes."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.usage.sums import DAILY_SUMS
from tenants.scoping import platform_wide


@platform_wide("the platform tells all organisations that used a model of its end")
async def organisations_that_used(
    connection: AsyncConnection, model: str, start: datetime, end: datetime
) -> list[UUID]:
    """The organisations with usage of a model in [start, end)."""
    rows = await connection.scalars(
        text(f"WITH {DAILY_SUMS} SELECT DISTINCT tenant_id FROM usage_sums WHERE model = :model ORDER BY 1"),  # noqa: S608
        {"model": model, "start": start, "end": end},
    )
    return list(rows)


async def models_used(
    connection: AsyncConnection, tenant_id: UUID, among: Sequence[str], start: datetime, end: datetime
) -> set[str]:
    """Those of the models `among` that an organisation used in [start, end)."""
    rows = await connection.scalars(
        text(
            f"WITH {DAILY_SUMS} SELECT DISTINCT model FROM usage_sums "  # noqa: S608
            "WHERE tenant_id = :tenant AND model = ANY(:models)"
        ),
        {"tenant": tenant_id, "models": list(among), "start": start, "end": end},
    )
    return set(rows)
