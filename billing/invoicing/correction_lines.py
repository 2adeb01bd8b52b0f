"""Reads the stored lines of a correction."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.invoicing.rerate import Difference
from tenants.scoping import platform_wide


@platform_wide("the lines of a correction may be of every organisation")
async def read_lines(
    connection: AsyncConnection, correction_id: UUID, *, tenants: Sequence[UUID] | None = None
) -> list[Difference]:
    """The stored lines of a correction in their order; `tenants` None = of all tenants."""
    rows = await connection.execute(
        text(
            "SELECT * FROM correction_lines WHERE correction_id = :id "
            "AND (CAST(:tenants AS uuid[]) IS NULL OR tenant_id = ANY (:tenants)) ORDER BY position"
        ),
        {"id": correction_id, "tenants": None if tenants is None else list(tenants)},
    )
    return [
        Difference(
            tenant_id=row.tenant_id,
            kind=row.kind,
            model=row.model,
            token_class=row._mapping["class"],
            tier=row.tier,
            price_version=row.price_version,
            tokens=int(row.tokens),
            old_price=None if row.old_price is None else int(row.old_price),
            new_price=None if row.new_price is None else int(row.new_price),
            old_exact=int(row.old_exact),
            new_exact=int(row.new_exact),
            delta=int(row.delta),
            used_in=row.used_in,
        )
        for row in rows
    ]
