"""Budgets with thresholds, low-balance alerts, endpoints of notices, and sent notices."""

from uuid import UUID

from admin.actor import Actor, require
from admin.audit import record
from admin.transactions import page_size, read, read_scoped, write_system
from billing.notifications import alerts, endpoints
from billing.notifications.alerts import AlertView, Kind, Scope
from billing.notifications.endpoints import Channel, EndpointCreated, EndpointView, NoticeView
from billing.notifications.notices import notify
from core.db import Database
from core.ids import uuid7
from tenants.roles import PLATFORM_ROLES, Role

_EDITOR_ROLES: tuple[Role, ...] = (*PLATFORM_ROLES, "tenant_owner")


async def list_alerts(database: Database, actor: Actor, *, tenant_id: UUID | None = None) -> list[AlertView]:
    """Budgets and low-balance alerts with their state. For platform roles, `tenant_id` None = every organisation."""
    async with read_scoped(database, actor, tenant_id) as (connection, scope):
        return await alerts.list_rules(connection, scope)


async def set_alert(
    database: Database,
    actor: Actor,
    *,
    tenant_id: UUID,
    kind: Kind,
    scope: Scope = "tenant",
    scope_id: UUID | None = None,
    amount_usd: str | None = None,
    thresholds: list[int] | None = None,
) -> list[AlertView]:
    """Create or replace a budget of a project or key, the organisation's thresholds, or its low-balance alert.

    Raises InvalidRequest, NotFound, Conflict.
    """
    require(actor, *_EDITOR_ROLES, tenant_id=tenant_id)
    scope_id = scope_id or tenant_id
    async with write_system(database) as connection:
        await alerts.set_rule(
            connection,
            tenant_id=tenant_id,
            kind=kind,
            scope=scope,
            scope_id=scope_id,
            amount_usd=amount_usd,
            thresholds=thresholds,
            created_by=actor.label,
        )
        await record(
            connection,
            actor,
            "alert.set",
            tenant_id=tenant_id,
            object_kind=scope,
            object_id=scope_id,
            after={"kind": kind, "amount_usd": amount_usd, "thresholds": thresholds},
        )
        return await alerts.list_rules(connection, tenant_id)


async def remove_alert(
    database: Database, actor: Actor, *, tenant_id: UUID, kind: Kind, scope_id: UUID | None = None
) -> None:
    """Remove a rule; the organisation's budget itself stays. Raises NotFound."""
    require(actor, *_EDITOR_ROLES, tenant_id=tenant_id)
    scope_id = scope_id or tenant_id
    async with write_system(database) as connection:
        await alerts.remove_rule(connection, tenant_id, kind, scope_id)
        await record(
            connection,
            actor,
            "alert.remove",
            tenant_id=tenant_id,
            object_kind="alert_rule",
            object_id=scope_id,
            before={"kind": kind},
        )


async def add_endpoint(
    database: Database,
    actor: Actor,
    *,
    tenant_id: UUID | None,
    channel: Channel,
    target: str,
    kinds: list[str] | None = None,
    pepper: bytes,
    allow_hosts: frozenset[str] = frozenset(),
) -> EndpointCreated:
    """Add a webhook address or mailbox; None = the platform's own. The webhook's signing secret is shown this once.

    Raises InvalidRequest for an address that is not on the public internet, Conflict.
    """
    require(actor, *_EDITOR_ROLES, tenant_id=tenant_id)
    async with write_system(database) as connection:
        created = await endpoints.add_endpoint(
            connection,
            tenant_id=tenant_id,
            channel=channel,
            target=target,
            kinds=kinds,
            created_by=actor.label,
            pepper=pepper,
            allow_hosts=allow_hosts,
        )
        await record(
            connection,
            actor,
            "alert_endpoint.add",
            tenant_id=tenant_id,
            object_kind="notice_endpoint",
            object_id=created.endpoint.id,
            after=created.endpoint,
        )
    return created


async def list_endpoints(
    database: Database, actor: Actor, *, tenant_id: UUID | None = None
) -> list[EndpointView]:
    """The endpoints of an organisation; platform roles: None = the platform's own."""
    async with read_scoped(database, actor, tenant_id) as (connection, scope):
        return await endpoints.list_endpoints(connection, scope)


async def remove_endpoint(
    database: Database, actor: Actor, *, tenant_id: UUID | None, endpoint_id: UUID
) -> None:
    """Remove an endpoint; its pending deliveries end as failed. Raises NotFound."""
    require(actor, *_EDITOR_ROLES, tenant_id=tenant_id)
    async with write_system(database) as connection:
        removed = await endpoints.remove_endpoint(connection, tenant_id, endpoint_id)
        await record(
            connection,
            actor,
            "alert_endpoint.remove",
            tenant_id=tenant_id,
            object_kind="notice_endpoint",
            object_id=endpoint_id,
            before=removed,
        )


async def send_test(database: Database, actor: Actor, *, tenant_id: UUID | None) -> None:
    """Send a notice of the kind `test` to every endpoint of an organisation, or of the platform (None).

    Raises Conflict when the last one was less than a minute ago.
    """
    require(actor, *_EDITOR_ROLES, tenant_id=tenant_id)
    notice = uuid7()
    async with write_system(database) as connection:
        await endpoints.limit_test_rate(connection, tenant_id)
        await notify(
            connection,
            tenant_id=tenant_id,
            kind="test",
            subject="A test of alerts",
            body=f"{actor.label} asked for this message. Nothing is wrong.\n",
            facts={"asked_by": actor.label},
            key=f"test|{notice}",
        )
        await record(
            connection, actor, "alert.test", tenant_id=tenant_id, object_kind="notice", object_id=notice
        )


async def list_notices(
    database: Database,
    actor: Actor,
    *,
    tenant_id: UUID | None = None,
    limit: int = 100,
    after: UUID | None = None,
) -> list[NoticeView]:
    """Notices of an organisation, the newest first; for platform roles, None = the platform's own."""
    async with read_scoped(database, actor, tenant_id) as (connection, scope):
        return await endpoints.list_notices(connection, scope, limit=page_size(limit), before=after)


async def list_outbox(
    database: Database, actor: Actor, *, limit: int = 100, after: UUID | None = None
) -> list[NoticeView]:
    """Mail kept because no SMTP server is set, the newest first; for platform roles."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return await endpoints.list_notices(
            connection, None, limit=page_size(limit), before=after, unsent="outbox"
        )


async def list_undelivered(
    database: Database, actor: Actor, *, limit: int = 100, after: UUID | None = None
) -> list[NoticeView]:
    """Undelivered notices of every organisation and of the platform, the newest first; for platform roles."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return await endpoints.list_notices(
            connection, None, limit=page_size(limit), before=after, unsent="undelivered"
        )
