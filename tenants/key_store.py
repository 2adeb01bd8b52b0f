"""Repository of API keys. Each function runs in the caller's transaction."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Row, Select, case, func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from tenants.scoping import platform_wide
from tenants.tables import api_keys, projects
from tenants.views import KeyView

_EFFECTIVE_STATUS = case(
    (api_keys.c.status == "revoked", "revoked"),
    (api_keys.c.expires_at <= func.now(), "expired"),
    else_="active",
).label("status")


def _select_views() -> Select[*tuple[Any, ...]]:
    """Keys with their project's name, without the hash."""
    return select(
        api_keys.c.id,
        api_keys.c.tenant_id,
        api_keys.c.project_id,
        projects.c.name.label("project"),
        api_keys.c.name,
        api_keys.c.kind,
        api_keys.c.last4,
        _EFFECTIVE_STATUS,
        api_keys.c.allowed_models,
        api_keys.c.created_at,
        api_keys.c.expires_at,
        api_keys.c.revoked_at,
        api_keys.c.last_used_at,
        api_keys.c.networks,
        api_keys.c.scopes,
        api_keys.c.regions,
        api_keys.c.gpus,
        api_keys.c.previous_until,
        api_keys.c.quota_status,
        api_keys.c.cors_origins,
    ).join(
        projects, (projects.c.id == api_keys.c.project_id) & (projects.c.tenant_id == api_keys.c.tenant_id)
    )


def _view(row: Row[*tuple[Any, ...]]) -> KeyView:
    return KeyView(**row._mapping)


async def insert_key(
    connection: AsyncConnection,
    tenant_id: UUID,
    project_id: UUID,
    key_id: UUID,
    *,
    name: str,
    kind: str,
    key_hash: bytes,
    last4: str,
    expires_at: datetime | None,
    allowed_models: list[str] | None,
    networks: list[str] | None = None,
    scopes: list[str] | None = None,
    regions: list[str] | None = None,
    gpus: list[str] | None = None,
) -> None:
    """Insert an active key, which has a tag, into the organisation's project."""
    await connection.execute(
        insert(api_keys).values(
            id=key_id,
            tenant_id=tenant_id,
            project_id=project_id,
            name=name,
            kind=kind,
            hash=key_hash,
            last4=last4,
            expires_at=expires_at,
            allowed_models=allowed_models,
            networks=networks,
            scopes=scopes,
            regions=regions,
            gpus=gpus,
            tagged=True,
        )
    )


async def count_active(connection: AsyncConnection, tenant_id: UUID, kind: str) -> int:
    """The active keys of the organisation of the kind live or test.

    No other transaction that counts them goes on until this one ends: two cannot both take the last place.
    """
    await connection.execute(
        text("SELECT pg_advisory_xact_lock(hashtext('penstock_keys'), hashtext(:tenant))"),
        {"tenant": str(tenant_id)},
    )
    statement = (
        select(func.count())
        .select_from(api_keys)
        .where(
            api_keys.c.tenant_id == tenant_id,
            api_keys.c.kind == kind,
            _EFFECTIVE_STATUS == "active",
        )
    )
    count: int = (await connection.execute(statement)).scalar_one()
    return count


async def update_key(
    connection: AsyncConnection, tenant_id: UUID, key_id: UUID, values: Mapping[str, Any]
) -> None:
    """Set some of name, expires_at, allowed_models, networks, scopes, regions and gpus of a key of the organisation."""
    await connection.execute(
        update(api_keys).where(api_keys.c.tenant_id == tenant_id, api_keys.c.id == key_id).values(values)
    )


async def rotate_key(
    connection: AsyncConnection,
    tenant_id: UUID,
    key_id: UUID,
    *,
    key_hash: bytes,
    last4: str,
    overlap: timedelta,
) -> bool:
    """Give an active key of the organisation a new secret; the one before it is accepted for `overlap` from now on.

    False when there is no such active key. An earlier overlap ends.
    """
    result = await connection.execute(
        update(api_keys)
        .where(api_keys.c.tenant_id == tenant_id, api_keys.c.id == key_id, _EFFECTIVE_STATUS == "active")
        .values(
            hash=key_hash, last4=last4, previous_hash=api_keys.c.hash, previous_until=func.now() + overlap
        )
    )
    return result.rowcount == 1


async def get_key(connection: AsyncConnection, tenant_id: UUID, key_id: UUID) -> KeyView | None:
    """One key of the organisation; None when it has no key with that id."""
    statement = _select_views().where(api_keys.c.tenant_id == tenant_id, api_keys.c.id == key_id)
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else _view(row)


async def list_keys(
    connection: AsyncConnection, tenant_id: UUID, *, limit: int, after: UUID | None
) -> list[KeyView]:
    """Keys of the organisation, oldest first, at most `limit`, after the key `after`; inactive ones included."""
    statement = _select_views().where(api_keys.c.tenant_id == tenant_id).order_by(api_keys.c.id).limit(limit)
    if after is not None:
        statement = statement.where(api_keys.c.id > after)
    return [_view(row) for row in await connection.execute(statement)]


async def mark_revoked(connection: AsyncConnection, tenant_id: UUID, key_id: UUID) -> bool:
    """Revoke a key of the organisation permanently; False when it is revoked already or does not exist."""
    result = await connection.execute(
        update(api_keys)
        .where(api_keys.c.tenant_id == tenant_id, api_keys.c.id == key_id, api_keys.c.status == "active")
        .values(status="revoked", revoked_at=func.now())
    )
    return result.rowcount == 1


@platform_wide("a key id alone names its organisation; the caller checks that it may see it")
async def tenant_of_key(connection: AsyncConnection, key_id: UUID) -> UUID | None:
    """The organisation that owns a key, or None; a tenant's own session finds only its keys."""
    found: UUID | None = await connection.scalar(select(api_keys.c.tenant_id).where(api_keys.c.id == key_id))
    return found


@platform_wide("platform roles look up the owner of a leaked key")
async def find_by_hash(connection: AsyncConnection, key_hash: bytes) -> KeyView | None:
    """The key with this hash in any state, or None."""
    same = (api_keys.c.hash == key_hash) | (api_keys.c.previous_hash == key_hash)
    row = (await connection.execute(_select_views().where(same))).one_or_none()
    return None if row is None else _view(row)


@platform_wide(
    "authentication: a key without a tag is looked up only when it is one of these, of any organisation"
)
async def untagged_hashes(
    connection: AsyncConnection, key_ids: Collection[UUID] | None = None
) -> list[bytes]:
    """The hashes of the keys without a tag, in any state: all of them, or those among `key_ids`.

    Of a rotated key both its hashes, since one of its secrets has no tag.
    """
    query = select(api_keys.c.hash, api_keys.c.previous_hash).where(api_keys.c.tagged.is_(False))
    if key_ids is not None:
        query = query.where(api_keys.c.id.in_(key_ids))
    return [one for row in await connection.execute(query) for one in row if one is not None]


_TOUCH = text(
    """
    WITH used AS (
      SELECT k.id, u.at
      FROM api_keys k JOIN unnest(CAST(:ids AS uuid[]), CAST(:ats AS timestamptz[])) AS u (id, at) ON u.id = k.id
      ORDER BY k.id FOR UPDATE OF k SKIP LOCKED
    )
    UPDATE api_keys k SET last_used_at = greatest(k.last_used_at, used.at) FROM used WHERE k.id = used.id
    """
)


@platform_wide(
    "one batch of last_used_at over all organisations; rows locked by others wait for the next batch"
)
async def touch(connection: AsyncConnection, used: dict[UUID, datetime]) -> None:
    """Update last_used_at by key id; never moves it back."""
    await connection.execute(_TOUCH, {"ids": list(used), "ats": list(used.values())})
