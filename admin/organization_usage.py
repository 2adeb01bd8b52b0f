"""Usage and costs of one's own organisation, as OpenAI's organization endpoints tell them (billing/exports)."""

from typing import Any
from uuid import UUID

from admin.actor import Actor, require
from admin.session import read
from billing.exports import openai_usage
from billing.exports.openai_usage import UsageQuery
from core.db import Database
from core.errors import InvalidRequest
from tenants.roles import READERS


async def completions_usage(
    database: Database, actor: Actor, *, tenant_id: UUID | None, query: UsageQuery
) -> dict[str, Any]:
    """A page of usage buckets. A tenant role gets its own organisation's; a platform role names one.

    Raises InvalidRequest, PermissionDenied.
    """
    scope = _scope(actor, tenant_id)
    async with read(database, actor) as connection:
        return await openai_usage.completions_usage(connection, scope, query)


async def costs(
    database: Database, actor: Actor, *, tenant_id: UUID | None, query: UsageQuery
) -> dict[str, Any]:
    """A page of cost buckets, as above. Raises InvalidRequest, PermissionDenied."""
    scope = _scope(actor, tenant_id)
    async with read(database, actor) as connection:
        return await openai_usage.costs(connection, scope, query)


def _scope(actor: Actor, tenant_id: UUID | None) -> UUID:
    scope = tenant_id if actor.is_platform else (tenant_id or actor.tenant_id)
    require(actor, *READERS, tenant_id=scope)
    if scope is None:
        raise InvalidRequest(
            "say whose usage: send the organisation's id in the header OpenAI-Organization",
            param="OpenAI-Organization",
        )
    return scope
