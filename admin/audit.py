"""The audit log: each administrative act adds one row in its own transaction; `list_audit` reads them."""

from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor, require_scope
from admin.transactions import page_size, read_scoped
from core.db import Database
from core.ids import uuid7
from tenants import audit as log
from tenants.names import clean_name
from tenants.token_scopes import Scope, scope_of
from tenants.views import AuditEntry

_SECRETS = frozenset({"secret", "hash", "password", "password_hash", "token"})

Facts = msgspec.Struct | dict[str, Any] | None


async def record(
    connection: AsyncConnection,
    actor: Actor,
    action: str,
    *,
    tenant_id: UUID | None,
    object_kind: str,
    object_id: UUID | str,
    reason: str | None = None,
    before: Facts = None,
    after: Facts = None,
    scope: Scope | None = None,
) -> None:
    """Add the audit row of an act, in the act's transaction.

    `scope`: that of the act where its name does not say it.
    `before` and `after` are views or dicts of the state. Raises ValueError when they contain a secret field, and
    PermissionDenied, which undoes the act, when the actor's token lacks the act's scope (tenants.token_scopes).
    """
    require_scope(actor, scope or scope_of(action))
    await log.insert_entry(
        connection,
        entry_id=uuid7(),
        actor_kind=actor.kind,
        actor_id=actor.id,
        actor_label=f"{actor.label} ({actor.command})" if actor.command else actor.label,
        action=action,
        tenant_id=tenant_id,
        object_kind=object_kind,
        object_id=str(object_id),
        reason=reason,
        before=_facts(before),
        after=_facts(after),
    )


async def record_self(
    connection: AsyncConnection, actor: Actor, action: str, after: dict[str, object] | None = None
) -> None:
    """Add the audit row of what a person did to the own account."""
    await record(
        connection,
        actor,
        action,
        tenant_id=actor.tenant_id,
        object_kind="user",
        object_id=actor.id,
        after=after,
    )


def _facts(value: Facts) -> dict[str, Any] | None:
    """The state as JSON-compatible values, with ids and instants as text."""
    if value is None:
        return None
    facts: dict[str, Any] = msgspec.to_builtins(value)
    secrets = _SECRETS & facts.keys()
    if secrets:
        raise ValueError(f"a secret must not be logged: {', '.join(sorted(secrets))}")
    return facts


async def list_audit(
    database: Database,
    actor: Actor,
    *,
    tenant_id: UUID | None = None,
    action: str | None = None,
    object_id: str | None = None,
    limit: int = 100,
    after: UUID | None = None,
) -> list[AuditEntry]:
    """Audit rows, the newest first; `after` is the id of the last one seen.

    Platform roles may read all; a tenant role reads its own organisation's, `tenant_id` given or not.
    `action` matches the beginning, such as "key." for all acts on keys.
    """
    async with read_scoped(database, actor, tenant_id) as (connection, scope):
        return await log.list_entries(
            connection,
            tenant_id=scope,
            action=None if action is None else clean_name(action, "action"),
            object_id=None if object_id is None else clean_name(object_id, "object_id"),
            limit=page_size(limit),
            before_id=after,
        )
