"""The prices that a correction puts in place of the pinned ones: given rates, or the price book as of an instant."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import text
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
    """The prices in force at `at` for each group's tenant, model and tier. Raises InvalidRequest without a price."""
    books: dict[tuple[UUID, str, str], dict[str, int]] = {}
    for tenant_id, model, tier in sorted({(group.tenant_id, group.model, group.tier) for group in groups}):
        row = (
            await connection.execute(
                text(
                    "SELECT p.id, p.input, p.cached_input, p.output, p.reasoning "
                    "FROM penstock_price(:model, :tier, :tenant, :at) p"
                ),
                {"model": model, "tier": tier, "tenant": tenant_id, "at": at},
            )
        ).one_or_none()
        if row is None or row.id is None:
            raise InvalidRequest(
                f"{model} ({tier}) had no price at {at.isoformat()}: choose another instant, or name the model",
                param="as_of",
            )
        books[tenant_id, model, tier] = {
            "input": row.input,
            "cached_input": row.cached_input,
            "output": row.output,
            "reasoning": row.reasoning,
        }
    return lambda group: books[group.tenant_id, group.model, group.tier]
