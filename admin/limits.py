"""Limits of an organisation, its projects and its keys."""

from uuid import UUID

import msgspec

from admin.actor import Actor, require
from admin.audit import record
from admin.transactions import read, write
from core.db import Database
from core.errors import InvalidRequest, NotFound
from tenants import limit_store, organisations
from tenants.limit_store import ScopedLimits
from tenants.principal import Limits
from tenants.roles import PLATFORM_ADMIN, READERS, TENANT_MANAGERS

SCOPE_KINDS = ("tenant", "project", "key")
MAX_LIMIT = 10**15
"""Sums of limits stay exact in Redis, whose numbers are doubles below 2**53."""


async def set_limits(
    database: Database,
    actor: Actor,
    *,
    tenant_id: UUID,
    scope_kind: str,
    scope_id: UUID,
    limits: Limits,
) -> Limits:
    """Replace all limits of a scope; None in a field lifts that one.

    An organisation's own limits are set by the platform; its owner may limit projects and keys.
    Raises NotFound when the organisation has no such scope, InvalidRequest for a limit below 1.
    """
    _check_scope(scope_kind)
    roles = (PLATFORM_ADMIN,) if scope_kind == "tenant" else TENANT_MANAGERS
    require(actor, *roles, tenant_id=tenant_id)
    _check_values(limits)
    async with write(database, actor) as connection:
        if await organisations.get_tenant(connection, tenant_id, lock=True) is None:
            raise NotFound(f"there is no organisation with the id {tenant_id}")
        if not await limit_store.scope_exists(connection, tenant_id, scope_kind, scope_id):
            raise _unknown(scope_kind, scope_id)
        before = await limit_store.get_limits(connection, tenant_id, scope_kind, scope_id)
        await limit_store.put_limits(connection, tenant_id, scope_kind, scope_id, limits)
        await record(
            connection,
            actor,
            "limits.set",
            tenant_id=tenant_id,
            object_kind=scope_kind,
            object_id=scope_id,
            before=before,
            after=limits,
        )
    return limits


async def get_limits(
    database: Database, actor: Actor, *, tenant_id: UUID, scope_kind: str, scope_id: UUID
) -> Limits:
    """The limits set on one scope. Raises NotFound when the organisation has no such scope."""
    _check_scope(scope_kind)
    async with read(database, actor, READERS, tenant_id=tenant_id) as connection:
        if not await limit_store.scope_exists(connection, tenant_id, scope_kind, scope_id):
            raise _unknown(scope_kind, scope_id)
        return await limit_store.get_limits(connection, tenant_id, scope_kind, scope_id)


async def list_limits(database: Database, actor: Actor, *, tenant_id: UUID) -> list[ScopedLimits]:
    """Every scope of the organisation that has limits. Raises NotFound."""
    async with read(database, actor, READERS, tenant_id=tenant_id) as connection:
        if await organisations.get_tenant(connection, tenant_id) is None:
            raise NotFound(f"there is no organisation with the id {tenant_id}")
        return await limit_store.list_limits(connection, tenant_id)


def _check_scope(scope_kind: str) -> None:
    if scope_kind not in SCOPE_KINDS:
        raise InvalidRequest(
            f"scope_kind must be one of {', '.join(SCOPE_KINDS)}, not {scope_kind[:40]!r}", param="scope_kind"
        )


def _check_values(limits: Limits) -> None:
    for name, value in msgspec.structs.asdict(limits).items():
        if value is not None and not 1 <= value <= MAX_LIMIT:
            raise InvalidRequest(
                f"{name} must be 1 to {MAX_LIMIT}, not {value}; leave it out for no limit, suspend to stop all",
                param=name,
            )


def _unknown(scope_kind: str, scope_id: UUID) -> NotFound:
    return NotFound(f"the organisation has no {scope_kind} with the id {scope_id}")
