"""A searchable list of settled requests, the newest first (receipts of one: billing/statements/receipts.py).

Request ids are UUIDv7, so a period is a range of ids, by which usage is partitioned: a query over a few days reads only
the index of their partitions.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.metering.records import Outcome
from core.errors import InvalidRequest
from core.money import pico_to_usd
from tenants.scoping import platform_wide

_LIST = text(
    "SELECT u.request_id, u.tenant_id, t.name AS tenant, k.last4 AS key_last4, u.key_id, u.model, u.tier, "
    "u.outcome::text AS outcome, u.admitted_at, u.ended_at, u.input_tokens, u.cached_input_tokens, u.output_tokens, "
    "u.reasoning_tokens, u.unbilled_input_tokens, u.unbilled_output_tokens, u.cost, u.queue_us, u.ttft_us, "
    "u.duration_us, u.attempts, u.replica_id, u.simulated "
    "FROM usage u LEFT JOIN tenants t ON t.id = u.tenant_id LEFT JOIN api_keys k ON k.id = u.key_id "
    "WHERE (CAST(:tenant AS uuid) IS NULL OR u.tenant_id = :tenant) "
    "AND u.request_id >= :floor AND u.request_id < :ceiling "
    "AND (CAST(:key AS uuid) IS NULL OR u.key_id = :key) "
    "AND (CAST(:model AS text) IS NULL OR u.model = :model) "
    "AND (CAST(:outcome AS text) IS NULL OR u.outcome::text = :outcome) "
    "ORDER BY u.request_id DESC LIMIT :limit"
)
_MAX_ID = UUID(int=2**128 - 1)


class RequestFilter(msgspec.Struct, frozen=True):
    """Criteria that requests must match; None = any."""

    key_id: UUID | None = None
    model: str | None = None
    outcome: str | None = None


class RequestView(msgspec.Struct, frozen=True):
    """One settled request; durations are microseconds, the cost exact decimal dollars."""

    request_id: UUID
    tenant_id: UUID
    tenant: str | None
    key_id: UUID
    key_last4: str | None
    model: str
    tier: str
    outcome: str
    admitted_at: datetime
    ended_at: datetime
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    reasoning_tokens: int
    unbilled_input_tokens: int
    unbilled_output_tokens: int
    cost_usd: str
    queue_us: int
    ttft_us: int
    duration_us: int
    attempts: int
    replica_id: str | None
    simulated: bool


def id_floor(at: datetime) -> UUID:
    """The smallest UUIDv7 of `at` or later."""
    return UUID(int=max(0, int(at.timestamp() * 1000)) << 80)


@platform_wide("the platform lists requests of all organisations; `tenant_id` narrows the list")
async def list_requests(
    connection: AsyncConnection,
    tenant_id: UUID | None,
    filters: RequestFilter,
    *,
    since: datetime,
    before: UUID | None,
    limit: int,
) -> list[RequestView]:
    """At most `limit` requests that began at `since` or later, the newest first, with ids below `before` (None = any).

    Raises InvalidRequest for an unknown outcome.
    """
    if filters.outcome is not None and filters.outcome not in {one.value for one in Outcome}:
        raise InvalidRequest(
            f"outcome must be one of {', '.join(Outcome)}, not {filters.outcome[:40]!r}", param="outcome"
        )
    parameters: dict[str, Any] = {
        "tenant": tenant_id,
        "floor": id_floor(since),
        "ceiling": before or _MAX_ID,
        "key": filters.key_id,
        "model": filters.model,
        "outcome": filters.outcome,
        "limit": limit,
    }
    return [_view(row._mapping) for row in await connection.execute(_LIST, parameters)]


@platform_wide("the platform finds a request by its id alone; `tenant_id` restricts the search")
async def find_request(
    connection: AsyncConnection, tenant_id: UUID | None, request_id: UUID
) -> RequestView | None:
    """One request by its id, or None; with `tenant_id`, only if it is that tenant's."""
    parameters = {
        "tenant": tenant_id,
        "floor": request_id,
        "ceiling": UUID(int=min(request_id.int + 1, _MAX_ID.int)),
        "key": None,
        "model": None,
        "outcome": None,
        "limit": 1,
    }
    row = (await connection.execute(_LIST, parameters)).one_or_none()
    return None if row is None else _view(row._mapping)


def _view(row: Any) -> RequestView:
    values = dict(row)
    values["cost_usd"] = pico_to_usd(int(values.pop("cost")))
    return RequestView(**values)
