"""Stored corrections for display: one, or the list of a month."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import date
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.invoicing.correction_lines import read_lines
from billing.invoicing.rerate import Difference
from billing.ledger.months import month_name
from core.errors import NotFound
from core.money import pico_to_usd
from tenants.scoping import platform_wide

MAX_LIST = 1000


class TenantDelta(msgspec.Struct, frozen=True):
    """The difference for one organisation; a negative `delta_usd` is in its favour."""

    tenant_id: UUID
    lines: int
    delta_usd: str


class Correction(msgspec.Struct, frozen=True):
    """A stored correction."""

    id: UUID
    month: str
    status: str
    """requested | applying (approved and not booked completely) | approved (and booked) | rejected"""
    spec: dict[str, Any]
    reason: str
    reverses: UUID | None
    reversed_by: UUID | None
    """The reversal of this correction that is neither rejected nor expired, if any."""
    approval_id: UUID
    delta_usd: str
    tenants: tuple[TenantDelta, ...]
    requested_by: str
    requested_at: str
    decided_by: str | None
    decided_at: str | None


async def get_correction(connection: AsyncConnection, correction_id: UUID) -> Correction:
    """One correction. Raises NotFound."""
    row = await correction_row(connection, correction_id)
    lines = await read_lines(connection, correction_id)
    return _view(row, by_tenant(lines))


@platform_wide("finance lists the corrections of all organisations")
async def list_corrections(
    connection: AsyncConnection, *, month: date | None = None, limit: int = 100
) -> list[Correction]:
    """At most `limit` (<= MAX_LIST) corrections of a month (None = all), newest first."""
    rows = await connection.execute(
        text(
            f"{_SELECT} WHERE CAST(:month AS date) IS NULL OR c.month = :month "
            "ORDER BY c.requested_at DESC, c.id LIMIT :limit"
        ),
        {"month": month, "limit": min(limit, MAX_LIST)},
    )
    found = []
    for row in rows.all():
        sums = await connection.execute(
            text(
                "SELECT tenant_id, count(*) AS lines, sum(delta) AS delta FROM correction_lines "
                "WHERE correction_id = :id GROUP BY 1 ORDER BY 1"
            ),
            {"id": row.id},
        )
        tenants = tuple(TenantDelta(one.tenant_id, one.lines, pico_to_usd(int(one.delta))) for one in sums)
        found.append(_view(row, tenants))
    return found


_SELECT = (
    "SELECT c.*, (SELECT r.id FROM corrections r WHERE r.reverses = c.id AND r.status NOT IN ('rejected', 'expired')) "
    "AS reversed_by FROM corrections c"
)


async def correction_row(connection: AsyncConnection, correction_id: UUID) -> Row[Any]:
    """The stored facts of a correction. Raises NotFound."""
    row = (await connection.execute(text(f"{_SELECT} WHERE c.id = :id"), {"id": correction_id})).one_or_none()
    if row is None:
        raise NotFound(f"there is no correction with the id {correction_id}")
    return row


def by_tenant(lines: Sequence[Difference]) -> tuple[TenantDelta, ...]:
    """The difference of each organisation, by id."""
    deltas: dict[UUID, list[int]] = defaultdict(list)
    for line in lines:
        deltas[line.tenant_id].append(line.delta)
    return tuple(
        TenantDelta(tenant_id, len(found), pico_to_usd(sum(found)))
        for tenant_id, found in sorted(deltas.items())
    )


def _view(row: Row[Any], tenants: tuple[TenantDelta, ...]) -> Correction:
    return Correction(
        id=row.id,
        month=month_name(row.month),
        status=row.status,
        spec=row.spec,
        reason=row.reason,
        reverses=row.reverses,
        reversed_by=row.reversed_by,
        approval_id=row.approval_id,
        delta_usd=pico_to_usd(int(row.delta)),
        tenants=tenants,
        requested_by=row.requested_by,
        requested_at=row.requested_at.isoformat(),
        decided_by=row.decided_by,
        decided_at=None if row.decided_at is None else row.decided_at.isoformat(),
    )
