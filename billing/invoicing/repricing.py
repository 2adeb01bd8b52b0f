"""The prices that a correction puts in place of the pinned ones: given rates, or the price book as of an instant."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.invoicing.lines import UsageGroup
from billing.invoicing.rerate import CorrectionSpec, PriceOrigin, prices_from_rates
from billing.usage.period import parse_instant
from core.errors import InvalidRequest


async def new_prices(
    connection: AsyncConnection, spec: CorrectionSpec, groups: Sequence[UsageGroup]
) -> Callable[[UsageGroup], Mapping[str, int] | None]:
    """A function from a usage group to its new prices (picodollars per token by class); None = unchanged.

    Raises InvalidRequest when `spec.as_of` is no instant, or a group's model had no price then.
    """
    if spec.as_of is not None:
        return await _book_as_of(connection, parse_instant(spec.as_of, "as_of"), groups)
    rows = await connection.execute(
        text(
            "SELECT p.id, p.tenant_id, c.discount_bps FROM price_versions p "
            "LEFT JOIN contracts c ON c.id = p.contract_id WHERE p.id = ANY (:ids)"
        ),
        {"ids": sorted({group.price_version for group in groups})},
    )
    return prices_from_rates(
        spec.rates, {row.id: PriceOrigin(row.tenant_id, row.discount_bps) for row in rows}
    )


async def _book_as_of(
    connection: AsyncConnection, at: datetime, groups: Sequence[UsageGroup]
) -> Callable[[UsageGroup], Mapping[str, int] | None]:
    """The prices in force at `at` for each group's tenant, model and tier, of an adapter with a price of its own first
    that one. Raises InvalidRequest without a price.
    """
    books: dict[tuple[UUID, str, str], dict[str, int]] = {}
    wanted = {(group.tenant_id, group.priced_as, group.tier): group.model for group in groups}
    for (tenant_id, name, tier), model in sorted(wanted.items()):
        row = await _price_at(connection, name, tier, tenant_id, at)
        if row is None and name != model:
            row = await _price_at(connection, model, tier, tenant_id, at)
        if row is None:
            raise InvalidRequest(
                f"{model} ({tier}) had no price at {at.isoformat()}: choose another instant, or name the model",
                param="as_of",
            )
        books[tenant_id, name, tier] = {
            "input": row.input,
            "cached_input": row.cached_input,
            "output": row.output,
            "reasoning": row.reasoning,
        }
    return lambda group: books[group.tenant_id, group.priced_as, group.tier]


async def _price_at(
    connection: AsyncConnection, name: str, tier: str, tenant_id: UUID, at: datetime
) -> Row[Any] | None:
    rows = await connection.execute(
        text(
            "SELECT p.id, p.input, p.cached_input, p.output, p.reasoning "
            "FROM penstock_price(:model, :tier, :tenant, :at) p WHERE p.id IS NOT NULL"
        ),
        {"model": name, "tier": tier, "tenant": tenant_id, "at": at},
    )
    return rows.one_or_none()
