"""Settled requests: the list, and one request with its cost."""

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from admin.actor import Actor, require
from admin.transactions import page_size, read_scoped
from billing.statements.receipts import receipt_body
from billing.usage.request_list import RequestFilter, RequestView, find_request
from billing.usage.request_list import list_requests as newest
from core.db import Database
from core.errors import NotFound
from tenants.roles import READERS


class RequestDetail(msgspec.Struct, frozen=True):
    """A request and its receipt's content: tokens times price by class, the reason, the bookings."""

    request: RequestView
    receipt: dict[str, Any]


async def list_requests(
    database: Database,
    actor: Actor,
    *,
    tenant_id: UUID | None = None,
    chosen: RequestFilter | None = None,
    since: datetime,
    before: UUID | None = None,
    limit: int = 100,
) -> list[RequestView]:
    """Requests since `since`, the newest first. A tenant role sees its own organisation's, without replicas.

    Raises InvalidRequest, PermissionDenied.
    """
    async with read_scoped(database, actor, tenant_id) as (connection, scope):
        found = await newest(
            connection, scope, chosen or RequestFilter(), since=since, before=before, limit=page_size(limit)
        )
    return [_redacted(actor, one) for one in found]


async def show_request(database: Database, actor: Actor, *, request_id: UUID) -> RequestDetail:
    """One request. Raises NotFound, also for another organisation's."""
    require(actor, *READERS, tenant_id=actor.tenant_id)
    async with database.read() as connection:
        found = await find_request(connection, actor.tenant_id, request_id)
        if found is None:
            raise NotFound(f"There is no settled request with the id {request_id}.", param="id")
        receipt = await receipt_body(connection, found.tenant_id, request_id)
    return RequestDetail(_redacted(actor, found), receipt)


def _redacted(actor: Actor, one: RequestView) -> RequestView:
    """The request without its replica for tenant roles, as replicas are internal to the platform."""
    return one if actor.is_platform else msgspec.structs.replace(one, replica_id=None)
