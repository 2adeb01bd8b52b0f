"""Endpoints of notices (webhooks and mailboxes) of an organisation or the platform, and the list of sent notices."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec
from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.notifications import webhooks
from core.errors import Conflict, InvalidRequest, NotFound, Unavailable
from core.ids import uuid7
from tenants.names import clean_email

Channel = Literal["webhook", "email"]
Unsent = Literal["outbox", "undelivered"]
MAX_ENDPOINTS = 10
"""Endpoints of one organisation, or of the platform."""


class EndpointView(msgspec.Struct, frozen=True):
    """A webhook or a mailbox."""

    id: UUID
    tenant_id: UUID | None
    """None = of the platform."""
    channel: str
    target: str
    kinds: list[str] | None
    """Kinds of notices that are sent there; None = all."""
    created_by: str
    created_at: datetime


class EndpointCreated(msgspec.Struct, frozen=True):
    """A new endpoint with a webhook's signing secret, which is shown only here."""

    endpoint: EndpointView
    secret: str | None


class NoticeView(msgspec.Struct, frozen=True):
    """A notice with the state of its deliveries."""

    id: UUID
    tenant_id: UUID | None
    kind: str
    subject: str
    body: str
    facts: dict[str, Any]
    created_at: datetime
    deliveries: list[dict[str, Any]]
    """Fields channel, target, state (pending | delivered | outbox | failed), attempts, last_error, done_at."""


_COLUMNS = "id, tenant_id, channel, target, kinds, created_by, created_at"


async def add_endpoint(
    connection: AsyncConnection,
    *,
    tenant_id: UUID | None,
    channel: Channel,
    target: str,
    kinds: list[str] | None,
    created_by: str,
    pepper: bytes,
    allow_hosts: frozenset[str],
) -> EndpointCreated:
    """Add a webhook or a mailbox.

    `target` is an https URL or an e-mail address, `kinds` 1 to 50 names (None = all). Signing secrets are derived from
    `pepper`; `allow_hosts` are hosts exempt from the check of addresses. Raises InvalidRequest for invalid arguments,
    Conflict for a repeated target or more than MAX_ENDPOINTS, Unavailable for a webhook without a pepper.
    """
    if channel == "email":
        target = clean_email(target, "target")
    else:
        webhooks.check_url(target, allow_hosts)
        if not pepper:
            raise Unavailable("webhooks need PENSTOCK_KEY_PEPPER: their signing secrets are derived from it")
    if kinds is not None and (
        not 1 <= len(kinds) <= 50 or not all(0 < len(kind) <= 100 and kind.isprintable() for kind in kinds)
    ):
        raise InvalidRequest("kinds are 1 to 50 names such as budget.threshold", param="kinds")
    await connection.execute(
        text("SELECT pg_advisory_xact_lock(hashtext('notice_endpoints ' || :scope))"),
        {"scope": str(tenant_id)},
    )
    present = await list_endpoints(connection, tenant_id)
    if len(present) >= MAX_ENDPOINTS:
        raise Conflict(f"there are {MAX_ENDPOINTS} endpoints already; remove one first")
    if any((one.channel, one.target) == (channel, target) for one in present):
        raise Conflict(f"notices go to {target} already", param="target")
    row = (
        await connection.execute(
            text(
                "INSERT INTO notice_endpoints (id, tenant_id, channel, target, kinds, created_by) "  # noqa: S608
                f"VALUES (:id, :tenant, :channel, :target, :kinds, :by) RETURNING {_COLUMNS}, secret_version"
            ),
            {
                "id": uuid7(),
                "tenant": tenant_id,
                "channel": channel,
                "target": target,
                "kinds": kinds,
                "by": created_by,
            },
        )
    ).one()
    secret = webhooks.endpoint_secret(pepper, row.id, row.secret_version) if channel == "webhook" else None
    return EndpointCreated(endpoint=_view(row), secret=secret)


async def list_endpoints(connection: AsyncConnection, tenant_id: UUID | None) -> list[EndpointView]:
    """The endpoints of an organisation, or of the platform (None)."""
    rows = await connection.execute(
        text(
            f"SELECT {_COLUMNS} FROM notice_endpoints "  # noqa: S608 - the names above
            "WHERE tenant_id IS NOT DISTINCT FROM CAST(:tenant AS uuid) AND removed_at IS NULL ORDER BY id"
        ),
        {"tenant": tenant_id},
    )
    return [_view(row) for row in rows]


async def remove_endpoint(
    connection: AsyncConnection, tenant_id: UUID | None, endpoint_id: UUID
) -> EndpointView:
    """Remove an endpoint; pending deliveries to it fail. Raises NotFound."""
    row = (
        await connection.execute(
            text(
                "UPDATE notice_endpoints SET removed_at = clock_timestamp() "  # noqa: S608
                "WHERE id = :id AND removed_at IS NULL "
                f"AND tenant_id IS NOT DISTINCT FROM CAST(:tenant AS uuid) RETURNING {_COLUMNS}"
            ),
            {"id": endpoint_id, "tenant": tenant_id},
        )
    ).one_or_none()
    if row is None:
        raise NotFound(f"there is no endpoint with the id {endpoint_id}")
    return _view(row)


async def list_notices(
    connection: AsyncConnection,
    tenant_id: UUID | None,
    *,
    limit: int,
    before: UUID | None,
    unsent: Unsent | None = None,
) -> list[NoticeView]:
    """At most `limit` notices of an organisation, or of the platform (None), newest first; `before` is a notice id.

    `unsent` lists instead, of all that the session may see, notices with mail kept without an SMTP server (`outbox`),
    or with a delivery whose first attempt failed (`undelivered`).
    """
    rows = await connection.execute(
        text(
            "SELECT n.id, n.tenant_id, n.kind, n.subject, n.body, n.facts, n.created_at, coalesce((SELECT "
            "jsonb_agg(jsonb_build_object('channel', d.channel, 'target', d.target, 'state', d.state, 'attempts', "
            "d.attempts, 'last_error', d.last_error, 'done_at', d.done_at) ORDER BY d.channel, d.target) "
            "FROM notice_deliveries d WHERE d.notice_id = n.id), '[]') AS deliveries FROM notices n "
            "WHERE (CASE CAST(:unsent AS text) WHEN 'outbox' THEN EXISTS (SELECT 1 FROM notice_deliveries d "
            "WHERE d.notice_id = n.id AND d.state = 'outbox') WHEN 'undelivered' THEN EXISTS (SELECT 1 "
            "FROM notice_deliveries d WHERE d.notice_id = n.id AND (d.state = 'failed' OR d.state = 'pending' "
            "AND d.attempts > 0)) ELSE n.tenant_id IS NOT DISTINCT FROM CAST(:tenant AS uuid) END) "
            "AND (CAST(:before AS uuid) IS NULL OR n.id < :before) ORDER BY n.id DESC LIMIT :limit"
        ),
        {"tenant": tenant_id, "limit": limit, "before": before, "unsent": unsent},
    )
    return [NoticeView(**row._mapping) for row in rows]


async def limit_test_rate(connection: AsyncConnection, tenant_id: UUID | None) -> None:
    """Raise Conflict when the scope's latest test notice is less than a minute old."""
    await connection.execute(
        text("SELECT pg_advisory_xact_lock(hashtext('notice_tests ' || :scope))"), {"scope": str(tenant_id)}
    )
    recent = text(
        "SELECT 1 FROM notices WHERE tenant_id IS NOT DISTINCT FROM CAST(:tenant AS uuid) AND kind = 'test' "
        "AND created_at > clock_timestamp() - interval '1 minute' LIMIT 1"
    )
    if await connection.scalar(recent, {"tenant": tenant_id}) is not None:
        raise Conflict("a test was sent less than a minute ago; look what became of it first")


def _view(row: Row[Any]) -> EndpointView:
    return EndpointView(
        id=row.id,
        tenant_id=row.tenant_id,
        channel=row.channel,
        target=row.target,
        kinds=None if row.kinds is None else list(row.kinds),
        created_by=row.created_by,
        created_at=row.created_at,
    )
