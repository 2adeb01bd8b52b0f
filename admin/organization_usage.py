"""Usage and costs of one organisation in the format of OpenAI's organization endpoints (billing/exports)."""

from typing import Any
from uuid import UUID

from admin.actor import Actor
from admin.transactions import read_scoped
from billing.exports import openai_usage
from billing.exports.openai_usage import UsageQuery
from core.db import Database
from core.errors import InvalidRequest


async def completions_usage(
    database: Database, actor: Actor, *, tenant_id: UUID | None, query: UsageQuery
) -> dict[str, Any]:
    """A page of usage buckets. A tenant role gets its own organisation's; a platform role names one.

    Raises InvalidRequest, PermissionDenied.
    """
    async with read_scoped(database, actor, tenant_id) as (connection, scope):
        return await openai_usage.completions_usage(connection, _named(scope), query)


async def costs(
    database: Database, actor: Actor, *, tenant_id: UUID | None, query: UsageQuery
) -> dict[str, Any]:
    """A page of cost buckets, with the scope of `completions_usage`. Raises InvalidRequest, PermissionDenied."""
    async with read_scoped(database, actor, tenant_id) as (connection, scope):
        return await openai_usage.costs(connection, _named(scope), query)


def _named(scope: UUID | None) -> UUID:
    """An organisation: these endpoints answer for one only. Raises InvalidRequest."""
    if scope is None:
        raise InvalidRequest(
            "say whose usage: send the organisation's id in the header OpenAI-Organization",
            param="OpenAI-Organization",
        )
    return scope
