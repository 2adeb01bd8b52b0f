"""API keys: create (the only time the key is seen), revoke, find the owner of a leaked one."""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor, require
from admin.audit import record
from admin.transactions import page_size, read, write, write_system
from core.clock import Clock, SystemClock
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound
from core.ids import uuid7
from tenants import client_settings, key_store, organisations, projects
from tenants.key_format import hash_key, new_key, parse_key
from tenants.names import (
    clean_models,
    clean_name,
    clean_networks,
    clean_places,
    clean_reason,
    clean_scopes,
)
from tenants.roles import KEY_MANAGERS, PLATFORM_ROLES, READERS
from tenants.views import KeyView

MAX_OVERLAP = timedelta(days=30)
"""Longest time in which both secrets of a rotated key work."""
MAX_ACTIVE_KEYS = {"live": 10_000, "test": 100}
"""Keys of each kind that an organisation may have at a time; revoked and expired ones do not count."""
_CLEANERS: dict[str, Callable[[Any], Any]] = {
    "name": clean_name,
    "allowed_models": clean_models,
    "networks": clean_networks,
    "scopes": clean_scopes,
    "regions": partial(clean_places, param="regions"),
    "gpus": partial(clean_places, param="gpus"),
    "expires_at": lambda value: value,
}


class CreatedKey(msgspec.Struct, frozen=True):
    """A new key. `secret` exists here only: show it once, store it nowhere."""

    view: KeyView
    secret: str

    def __repr__(self) -> str:
        """Without the secret, so that no log can show it."""
        return f"CreatedKey(view={self.view!r})"


async def create_key(
    database: Database,
    actor: Actor,
    *,
    pepper: bytes,
    tenant_id: UUID,
    project_id: UUID,
    name: str,
    kind: str = "live",
    expires_at: datetime | None = None,
    allowed_models: list[str] | None = None,
    networks: list[str] | None = None,
    scopes: list[str] | None = None,
    regions: list[str] | None = None,
    gpus: list[str] | None = None,
    clock: Clock | None = None,
) -> CreatedKey:
    """Make a key of a project. `pepper` is `settings.key_pepper`; `allowed_models` None allows every model,
    `networks` (CIDR) None every address, `scopes` (of tenants.names.KEY_SCOPES) None everything, `regions` and `gpus`
    (classes such as B300) any.

    Raises NotFound (no such project), Conflict (project archived, MAX_ACTIVE_KEYS reached), InvalidRequest.
    """
    require(actor, *KEY_MANAGERS, tenant_id=tenant_id)
    name = clean_name(name)
    allowed_models = clean_models(allowed_models)
    networks, scopes = clean_networks(networks), clean_scopes(scopes)
    regions, gpus = clean_places(regions, "regions"), clean_places(gpus, "gpus")
    if kind not in ("live", "test"):
        raise InvalidRequest(f"kind must be live or test, not {kind[:40]!r}", param="kind")
    if expires_at is not None:
        _check_expiry(expires_at, clock or SystemClock())
    secret = new_key("test" if kind == "test" else "live", pepper)
    key_id = uuid7()
    async with write(database, actor) as connection:
        project = await projects.get_project(connection, tenant_id, project_id, lock=True)
        if project is None:
            raise NotFound(f"the organisation has no project with the id {project_id}", param="project_id")
        if project.status != "active":
            raise Conflict(f"the project {project.name!r} is archived; restore it or use another")
        if await key_store.count_active(connection, tenant_id, kind) >= MAX_ACTIVE_KEYS[kind]:
            raise Conflict(
                f"the organisation has {MAX_ACTIVE_KEYS[kind]:,} active {kind} keys, the most it may have; revoke one "
                "that is not used",
                code="too_many_keys",
            )
        await key_store.insert_key(
            connection,
            tenant_id,
            project_id,
            key_id,
            name=name,
            kind=kind,
            key_hash=hash_key(secret, pepper),
            last4=secret[-4:],
            expires_at=expires_at,
            allowed_models=allowed_models,
            networks=networks,
            scopes=scopes,
            regions=regions,
            gpus=gpus,
        )
        view = await key_store.get_key(connection, tenant_id, key_id)
        if view is None:
            raise LookupError("a key just inserted is not there")
        await record(
            connection,
            actor,
            "key.create",
            tenant_id=tenant_id,
            object_kind="key",
            object_id=key_id,
            after=view,
        )
    return CreatedKey(view, secret)


async def list_keys(
    database: Database, actor: Actor, *, tenant_id: UUID, limit: int = 1000, after: UUID | None = None
) -> list[KeyView]:
    """Keys of the organisation from the oldest on, dead ones included. Raises NotFound."""
    async with read(database, actor, READERS, tenant_id=tenant_id) as connection:
        if await organisations.get_tenant(connection, tenant_id) is None:
            raise NotFound(f"there is no organisation with the id {tenant_id}")
        return await key_store.list_keys(connection, tenant_id, limit=page_size(limit), after=after)


async def get_key(database: Database, actor: Actor, *, key_id: UUID) -> KeyView:
    """One key, of any organisation the actor may see. Raises NotFound."""
    async with read(database, actor, READERS, tenant_id=actor.tenant_id) as connection:
        tenant_id = await key_store.tenant_of_key(connection, key_id)
        view = None if tenant_id is None else await key_store.get_key(connection, tenant_id, key_id)
    if view is None:
        raise _unknown(key_id)
    return view


async def update_key(
    database: Database, actor: Actor, *, key_id: UUID, changes: dict[str, Any], clock: Clock | None = None
) -> KeyView:
    """Change some of name, expires_at, allowed_models, networks, scopes, regions and gpus of a key that is not revoked.

    Raises NotFound, Conflict when it is revoked, InvalidRequest.
    """
    require(actor, *KEY_MANAGERS, tenant_id=actor.tenant_id)
    values = {name: _CLEANERS[name](value) for name, value in changes.items()}
    if not values:
        raise InvalidRequest("nothing to change is given")
    if values.get("expires_at") is not None:
        _check_expiry(values["expires_at"], clock or SystemClock())
    async with write(database, actor) as connection:
        before = await _find(connection, key_id)
        if before.status == "revoked":
            raise Conflict(f"the key {before.name!r} (…{before.last4}) is revoked; make another one")
        await key_store.update_key(connection, before.tenant_id, key_id, values)
        return await _read_and_record(connection, actor, "key.update", before)


async def rotate_key(
    database: Database, actor: Actor, *, pepper: bytes, key_id: UUID, overlap: timedelta
) -> CreatedKey:
    """Give a key a new secret. The one before it works for `overlap` more; id, limits, budget and usage stay.

    A rotation within the overlap of another ends that overlap. Raises NotFound, Conflict when the key is not active,
    InvalidRequest.
    """
    require(actor, *KEY_MANAGERS, tenant_id=actor.tenant_id)
    if not timedelta(0) <= overlap <= MAX_OVERLAP:
        raise InvalidRequest(
            f"overlap_s must be 0 to {MAX_OVERLAP.total_seconds():.0f}, not {overlap.total_seconds():.0f}",
            param="overlap_s",
        )
    async with write_system(database) as connection:  # no tenant's session may read a hash
        before = await _find(connection, key_id)
        secret = new_key("test" if before.kind == "test" else "live", pepper)
        if not actor.is_platform and before.tenant_id != actor.tenant_id:
            raise _unknown(key_id)
        if not await key_store.rotate_key(
            connection,
            before.tenant_id,
            key_id,
            key_hash=hash_key(secret, pepper),
            last4=secret[-4:],
            overlap=overlap,
        ):
            raise Conflict(f"the key {before.name!r} (…{before.last4}) is {before.status}; make another one")
        return CreatedKey(await _read_and_record(connection, actor, "key.rotate", before), secret)


async def _find(connection: AsyncConnection, key_id: UUID) -> KeyView:
    """A key that the session may see. Raises NotFound."""
    tenant_id = await key_store.tenant_of_key(connection, key_id)
    view = None if tenant_id is None else await key_store.get_key(connection, tenant_id, key_id)
    if view is None:
        raise _unknown(key_id)
    return view


async def _read_and_record(
    connection: AsyncConnection, actor: Actor, action: str, before: KeyView
) -> KeyView:
    """Read a key again after its change, and log both states."""
    after = await _find(connection, before.id)
    await record(
        connection,
        actor,
        action,
        tenant_id=before.tenant_id,
        object_kind="key",
        object_id=before.id,
        before=before,
        after=after,
    )
    return after


async def revoke_key(database: Database, actor: Actor, *, key_id: UUID, reason: str | None = None) -> KeyView:
    """Revoke a key and abort its streams. Raises Conflict when it is already revoked, NotFound."""
    require(actor, *KEY_MANAGERS, tenant_id=actor.tenant_id)
    reason = None if reason is None else clean_reason(reason)
    async with write(database, actor) as connection:
        tenant_id = await key_store.tenant_of_key(connection, key_id)
        before = None if tenant_id is None else await key_store.get_key(connection, tenant_id, key_id)
        if tenant_id is None or before is None:
            raise _unknown(key_id)
        if not await key_store.mark_revoked(connection, tenant_id, key_id):
            raise Conflict(f"the key {before.name!r} (…{before.last4}) is revoked already")
        after = await key_store.get_key(connection, tenant_id, key_id)
        await record(
            connection,
            actor,
            "key.revoke",
            tenant_id=tenant_id,
            object_kind="key",
            object_id=key_id,
            reason=reason,
            before=before,
            after=after,
        )
    return after or before


async def set_client_settings(
    database: Database, actor: Actor, *, key_id: UUID, quota_status: int, cors_origins: list[str] | None
) -> KeyView:
    """Replace a key's settings for its clients. `cors_origins` None turns CORS off.

    Raises InvalidRequest for a value that is not valid, NotFound.
    """
    require(actor, *KEY_MANAGERS, tenant_id=actor.tenant_id)
    origins = client_settings.clean_origins(cors_origins)
    quota_status = client_settings.check_quota_status(quota_status)
    async with write(database, actor) as connection:
        tenant_id = await key_store.tenant_of_key(connection, key_id)
        before = None if tenant_id is None else await key_store.get_key(connection, tenant_id, key_id)
        if tenant_id is None or before is None:
            raise _unknown(key_id)
        await client_settings.store(connection, tenant_id, key_id, quota_status=quota_status, origins=origins)
        after = msgspec.structs.replace(before, quota_status=quota_status, cors_origins=origins)
        await record(
            connection,
            actor,
            "key.client_settings",
            tenant_id=tenant_id,
            object_kind="key",
            object_id=key_id,
            before=before,
            after=after,
        )
    return after


async def find_key(database: Database, actor: Actor, *, pepper: bytes, raw: str) -> KeyView:
    """The view of a leaked key. Only its HMAC is compared; the key itself is not stored.

    Raises InvalidRequest when `raw` is not a complete key, NotFound when it is unknown.
    """
    raw = raw.strip()
    async with read(database, actor, PLATFORM_ROLES) as connection:
        if not parse_key(raw):
            raise InvalidRequest("that is no whole API key: its shape or its checksum is wrong", param="key")
        view = await key_store.find_by_hash(connection, hash_key(raw, pepper))
    if view is None:
        raise NotFound("no organisation has this key")
    return view


def _check_expiry(expires_at: datetime, clock: Clock) -> None:
    if expires_at.tzinfo is None:
        raise InvalidRequest("expires_at needs a time zone, such as 2026-12-31T00:00:00Z", param="expires_at")
    if expires_at <= clock.now():
        raise InvalidRequest(f"expires_at {expires_at.isoformat()} is in the past", param="expires_at")


def _unknown(key_id: UUID) -> NotFound:
    return NotFound(f"there is no key with the id {key_id}")
