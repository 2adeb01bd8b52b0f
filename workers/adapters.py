"""LoRA adapters of organisations: rows of PostgreSQL, with their files in parts.

docs/adapters.md describes them. Engines get them through the agent of their host (`workers.adapter_host`).
"""

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Row, delete, exists, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from core.errors import InvalidRequest
from workers.adapter_wire import AdapterFile
from workers.tables import adapter_parts, adapters

MARK = ":"
"""Separates the parts of an adapter's public name: MODEL:NAME:SUFFIX, as OpenAI names models that it has trained."""
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")


class Adapter(msgspec.Struct, frozen=True):
    """One adapter as it is stored."""

    id: UUID
    tenant_id: UUID
    model: str
    name: str
    public_name: str
    """Its name in requests."""
    source: str
    """`upload`, or REPOSITORY@COMMIT of the hub."""
    rank: int
    bytes: int
    files: tuple[AdapterFile, ...]
    created_at: datetime
    deleted_at: datetime | None = None


def model_of(public_name: str) -> str:
    """The model in the form of an adapter's public name; empty for a name of another form."""
    parts = public_name.rsplit(MARK, 2)
    return parts[0] if len(parts) == 3 else ""


def clean_adapter_name(name: str) -> str:
    """An adapter's name. Raises InvalidRequest."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"an adapter's name has 1 to 40 small letters, digits and hyphens, and ends with a letter or digit; not "
            f"{name[:80]!r}",
            param="name",
        )
    return name


async def read_adapters(
    connection: AsyncConnection, *, tenant_id: UUID | None = None, deleted: bool = False
) -> list[Adapter]:
    """The adapters, of an organisation or of all, by model and name; with `deleted`, those as well."""
    query = select(adapters).order_by(adapters.c.model, adapters.c.name, adapters.c.id)
    if tenant_id is not None:
        query = query.where(adapters.c.tenant_id == tenant_id)
    if not deleted:
        query = query.where(adapters.c.deleted_at.is_(None))
    return [_of(row) for row in await connection.execute(query)]


class NamedAdapter(msgspec.Struct, frozen=True):
    """What requests need to know of an adapter."""

    public_name: str
    tenant_id: UUID
    model: str
    name: str
    created_at: datetime


async def read_names(connection: AsyncConnection) -> dict[str, NamedAdapter]:
    """All adapters that can be called, by public name."""
    columns = [adapters.c[name] for name in NamedAdapter.__struct_fields__]
    rows = await connection.execute(
        select(*columns).where(adapters.c.deleted_at.is_(None)).order_by(adapters.c.public_name)
    )
    return {row.public_name: NamedAdapter(**row._mapping) for row in rows}


async def find_adapter(connection: AsyncConnection, public_name: str) -> Adapter | None:
    """The adapter that requests call by a name; None when there is none, or it is deleted."""
    query = select(adapters).where(adapters.c.public_name == public_name, adapters.c.deleted_at.is_(None))
    row = (await connection.execute(query)).one_or_none()
    return None if row is None else _of(row)


async def lock_adapters(connection: AsyncConnection, tenant_id: UUID) -> None:
    """Let no other transaction that does the same change an organisation's adapters until this one ends."""
    key = func.hashtext(str(tenant_id))
    await connection.execute(select(func.pg_advisory_xact_lock(func.hashtext("penstock_adapters"), key)))


async def insert_adapter(connection: AsyncConnection, adapter: Adapter) -> None:
    """Add an adapter whose parts are stored."""
    values = msgspec.to_builtins(adapter, builtin_types=(UUID, datetime))
    await connection.execute(adapters.insert().values(values))


async def delete_adapter(connection: AsyncConnection, adapter_id: UUID) -> None:
    """Delete an adapter and its parts; its row stays for reports."""
    await connection.execute(
        update(adapters).where(adapters.c.id == adapter_id).values(deleted_at=func.clock_timestamp())
    )
    await delete_parts(connection, adapter_id)


async def insert_parts(
    connection: AsyncConnection, adapter_id: UUID, path: str, parts: Iterable[tuple[int, bytes]]
) -> None:
    """Store parts of a file, with their numbers."""
    rows = [{"adapter_id": adapter_id, "path": path, "part": part, "data": data} for part, data in parts]
    if rows:
        await connection.execute(adapter_parts.insert(), rows)


async def delete_parts(connection: AsyncConnection, adapter_id: UUID) -> None:
    """Remove the parts of an adapter, or of an upload that has failed."""
    await connection.execute(delete(adapter_parts).where(adapter_parts.c.adapter_id == adapter_id))


async def delete_lost_parts(connection: AsyncConnection, before: UUID) -> None:
    """Remove the parts of uploads that never ended: those of ids below `before`, which follow the time (UUIDv7)."""
    known = exists().where(adapters.c.id == adapter_parts.c.adapter_id)
    await connection.execute(delete(adapter_parts).where(adapter_parts.c.adapter_id < before, ~known))


async def read_part(connection: AsyncConnection, adapter_id: UUID, path: str, part: int) -> bytes | None:
    """A part of a file; None when there is none."""
    query = select(adapter_parts.c.data).where(
        adapter_parts.c.adapter_id == adapter_id, adapter_parts.c.path == path, adapter_parts.c.part == part
    )
    found: bytes | None = (await connection.execute(query)).scalar_one_or_none()
    return found


async def deleted_of(connection: AsyncConnection, adapter_ids: Sequence[UUID]) -> list[UUID]:
    """Which of these adapters are deleted, or were never known."""
    query = select(adapters.c.id).where(adapters.c.id.in_(adapter_ids), adapters.c.deleted_at.is_(None))
    kept = {row.id for row in await connection.execute(query)}
    return [each for each in adapter_ids if each not in kept]


def _of(row: Row[Any]) -> Adapter:
    return Adapter(**row._asdict() | {"files": msgspec.convert(row.files, tuple[AdapterFile, ...])})
