"""LoRA adapters of organisations: upload, import from the hub, list, delete."""

import asyncio
import base64
import hashlib
import io
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from typing import BinaryIO
from uuid import UUID

import msgspec

from admin.actor import Actor, require
from admin.audit import record
from admin.models import list_models, require_model
from admin.transactions import now_of, read_scoped, write_system
from billing.pricing.prices import PriceView, end_price, list_prices
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound, RequestTooLarge
from core.ids import uuid7
from core.settings import Settings
from tenants.names import clean_reason
from tenants.roles import KEY_MANAGERS
from workers.adapter_files import CONFIG, WEIGHTS, check_config, check_weights
from workers.adapter_options import largest_rank
from workers.adapter_wire import PART_BYTES, AdapterFile
from workers.adapters import (
    MARK,
    Adapter,
    clean_adapter_name,
    delete_adapter,
    delete_lost_parts,
    delete_parts,
    insert_adapter,
    insert_parts,
    lock_adapters,
    read_adapters,
)
from workers.added_models import read_catalog

PARTS_AT_ONCE = 16
"""Parts that one transaction stores."""
LOST_MS = 24 * 3600 * 1000
"""Age in milliseconds from which the parts of an upload that never ended are removed."""
_SUFFIX_BYTES = 5


class AdapterView(msgspec.Struct, frozen=True):
    """An adapter as people see it."""

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
    prices: tuple[PriceView, ...] = ()
    """Of its own, current and scheduled; in a tier without one the model's holds."""


class AdapterLimits(msgspec.Struct, frozen=True):
    """What an organisation may have."""

    count: int
    bytes: int
    """Of one adapter."""

    @classmethod
    def of(cls, settings: Settings) -> "AdapterLimits":
        """Those of the settings."""
        return cls(settings.adapters_per_tenant, settings.adapter_max_mb * 1_000_000)


class Upload(msgspec.Struct):
    """The files of an adapter, open for reading."""

    config: bytes
    weights: BinaryIO
    weights_bytes: int
    source: str = "upload"


async def create_adapter(
    database: Database,
    actor: Actor,
    *,
    tenant_id: UUID,
    model: str,
    name: str,
    upload: Upload,
    limits: AdapterLimits,
    suffix: Callable[[], bytes] = lambda: secrets.token_bytes(_SUFFIX_BYTES),
) -> AdapterView:
    """Check and store an adapter for a model; its keys may call it within seconds.

    Raises NotFound for an unknown model; Conflict for a model without engines that take adapters, a name that is taken
    and too many adapters; InvalidRequest for files that are no LoRA adapter or a rank that the engines cannot load; and
    RequestTooLarge. Nothing is stored then.
    """
    require(actor, *KEY_MANAGERS, tenant_id=tenant_id)
    name = clean_adapter_name(name)
    total = len(upload.config) + upload.weights_bytes
    if total > limits.bytes:
        raise RequestTooLarge(
            f"the adapter has {total:,} bytes, and at most {limits.bytes:,} are accepted", param="weights"
        )
    most = await check_place(database, tenant_id, model, name, limits)
    rank = check_config(upload.config)
    await asyncio.to_thread(check_weights, upload.weights, upload.weights_bytes, rank)
    if rank > most:
        raise InvalidRequest(
            f"the adapter has the rank {rank}, and engines of {model!r} load at most {most}", param="config"
        )
    adapter_id = uuid7()
    try:
        files = (
            await _store(database, adapter_id, CONFIG, io.BytesIO(upload.config)),
            await _store(database, adapter_id, WEIGHTS, upload.weights),
        )
        word = base64.b32encode(suffix()).decode().lower()
        made = Adapter(
            adapter_id, tenant_id, model, name, MARK.join((model, name, word)), upload.source, rank, total, files,
            datetime.now(UTC),
        )  # fmt: skip
        return await _add(database, actor, made, limits)
    except BaseException:
        async with database.system() as connection:
            await delete_parts(connection, adapter_id)
        raise


async def check_place(
    database: Database, tenant_id: UUID, model: str, name: str, limits: AdapterLimits
) -> int:
    """Check that an organisation may have one more adapter of a model by a name, before its files are handled.

    Returns the highest rank that the model's engines load. Raises NotFound, Conflict and InvalidRequest.
    """
    clean_adapter_name(name)
    async with database.read() as connection:
        await require_model(connection, model)
        known = (await read_catalog(connection)).models.get(model)
        _check_count(await read_adapters(connection, tenant_id=tenant_id), model, name, limits)
    most = largest_rank(known) if known is not None else 0
    if not most:
        raise Conflict(f"no engine of the model {model!r} takes adapters", param="model")
    return most


def _check_count(present: list[Adapter], model: str, name: str, limits: AdapterLimits) -> None:
    if any((each.model, each.name) == (model, name) for each in present):
        raise Conflict(f"there is an adapter {name!r} of {model!r} already", param="name")
    if len(present) >= limits.count:
        raise Conflict(
            f"the organisation has {len(present)} adapters, the most it may have; delete one that is not used",
            code="too_many_adapters",
        )


async def _add(database: Database, actor: Actor, made: Adapter, limits: AdapterLimits) -> AdapterView:
    async with write_system(database) as connection:
        await lock_adapters(connection, made.tenant_id)
        _check_count(await read_adapters(connection, tenant_id=made.tenant_id), made.model, made.name, limits)
        made = msgspec.structs.replace(made, created_at=await now_of(connection))
        await insert_adapter(connection, made)
        await delete_lost_parts(connection, _before(made.id))
        view = _view(made)
        await record(
            connection, actor, "adapter.create", tenant_id=made.tenant_id, object_kind="adapter",
            object_id=made.id, after=view,
        )  # fmt: skip
        return view


async def adapter_bases(database: Database, actor: Actor) -> list[str]:
    """Names of the offered models whose engines take adapters. Raises PermissionDenied."""
    models = await list_models(database, actor)
    async with database.read() as connection:
        known = (await read_catalog(connection)).models
    offered = [one.name for one in models if one.status != "retired" and one.alias_of is None]
    return [name for name in offered if name in known and largest_rank(known[name])]


async def list_adapters(
    database: Database, actor: Actor, *, tenant_id: UUID | None = None
) -> list[AdapterView]:
    """The adapters of an organisation, or of all, by model and name. Raises PermissionDenied."""
    async with read_scoped(database, actor, tenant_id) as (connection, scope):
        found = await read_adapters(connection, tenant_id=scope)
        prices: dict[str, list[PriceView]] = {}
        for price in await list_prices(connection, tenant_id=scope):
            prices.setdefault(price.model, []).append(price)
        return [
            msgspec.structs.replace(_view(each), prices=tuple(prices.get(each.public_name, ())))
            for each in found
        ]


async def remove_adapter(
    database: Database,
    actor: Actor,
    *,
    adapter_id: UUID,
    tenant_id: UUID | None = None,
    reason: str | None = None,
) -> AdapterView:
    """Delete an adapter: new requests for it get 404 within seconds, running ones end, at the price that they have.

    Hosts remove its files within a minute. Its price book ends. Raises NotFound and PermissionDenied.
    """
    require(actor, *KEY_MANAGERS, tenant_id=actor.tenant_id)
    async with read_scoped(database, actor, tenant_id) as (connection, scope):
        found = [each for each in await read_adapters(connection, tenant_id=scope) if each.id == adapter_id]
    if not found:
        raise NotFound(f"there is no adapter with the id {adapter_id}", param="adapter_id")
    async with write_system(database) as connection:
        await delete_adapter(connection, adapter_id)
        await delete_lost_parts(connection, _before(uuid7()))
        view = _view(found[0])
        of_its_own = await list_prices(connection, model=view.public_name, tenant_id=view.tenant_id)
        for tier in {price.tier for price in of_its_own}:
            await end_price(
                connection,
                model=view.public_name,
                tier=tier,
                tenant_id=view.tenant_id,
                at=None,
                ended_by=actor.label,
            )
        await record(
            connection, actor, "adapter.delete", tenant_id=view.tenant_id, object_kind="adapter",
            object_id=adapter_id, reason=clean_reason(reason) if reason else None, before=view,
        )  # fmt: skip
    return view


async def _store(database: Database, adapter_id: UUID, path: str, file: BinaryIO) -> AdapterFile:
    await asyncio.to_thread(file.seek, 0)
    digest, size, part = hashlib.sha256(), 0, 0
    while batch := await asyncio.to_thread(file.read, PARTS_AT_ONCE * PART_BYTES):
        digest.update(batch)
        size += len(batch)
        rows = [(part + number, data) for number, data in _parts_of(batch)]
        part += len(rows)
        async with database.system() as connection:
            await insert_parts(connection, adapter_id, path, rows)
    return AdapterFile(path, size, digest.hexdigest())


def _parts_of(data: bytes) -> list[tuple[int, bytes]]:
    return [
        (number, data[start : start + PART_BYTES])
        for number, start in enumerate(range(0, len(data), PART_BYTES))
    ]


def _before(made: UUID) -> UUID:
    """The lowest id of what began less than LOST_MS before `made`."""
    return UUID(int=((made.int >> 80) - LOST_MS) << 80)


def _view(adapter: Adapter) -> AdapterView:
    facts = (name for name in AdapterView.__struct_fields__ if name != "prices")
    return AdapterView(**{name: getattr(adapter, name) for name in facts})
