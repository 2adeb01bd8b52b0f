"""Reads a file of a scheduled export from its store and verifies it against the recorded checksum."""

import asyncio
import hashlib
from uuid import UUID

import msgspec
from sqlalchemy import select

from billing.exports import manifest as manifests
from billing.exports.definitions import find_definition
from billing.exports.schedule_periods import label
from billing.exports.stores import open_store
from billing.exports.tables import export_runs
from billing.exports.writers import MEDIA_TYPES
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound
from core.settings import Settings

MAX_BYTES = 64 * 1024 * 1024
"""Bytes of a file that can be fetched here; the whole file is in memory while it is verified."""


class FetchedFile(msgspec.Struct, frozen=True):
    """A verified file."""

    name: str
    media_type: str
    content: bytes


async def fetch_run(database: Database, settings: Settings, run_id: UUID) -> FetchedFile:
    """The file of one run.

    Raises NotFound for an unknown run or a missing file, InvalidRequest for a file of more than MAX_BYTES, Conflict
    when its checksum differs, Unavailable when the store does not answer.
    """
    async with database.read() as connection:
        run = (
            await connection.execute(select(*export_runs.c).where(export_runs.c.id == run_id))
        ).one_or_none()
        if run is None:
            raise NotFound(f"there is no run of an export with the id {run_id}")
        definition = await find_definition(connection, str(run.definition_id))
    period = label(definition.cadence, run.period_start)
    folder = f"{definition.name}/{period}/r{run.revision:04d}"
    store = await asyncio.to_thread(open_store, definition.destination, settings)
    stored = await asyncio.to_thread(store.read, f"{folder}/{manifests.FILE_NAME}")
    if stored is None:
        raise NotFound(f"{run.location} is not where it was written")
    size = manifests.decode(stored).bytes
    if size > MAX_BYTES:
        raise InvalidRequest(f"the file has {size} bytes, too many for a download: fetch {run.location}")
    content = await asyncio.to_thread(store.read, f"{folder}/{definition.dataset}.{definition.format}")
    if content is None:
        raise NotFound(f"{run.location} is not where it was written")
    if hashlib.sha256(content).hexdigest() != run.sha256:
        raise Conflict(f"{run.location} is not what was written: its SHA-256 differs from the recorded one")
    return FetchedFile(
        f"{definition.name}-{period}-r{run.revision}.{definition.format}",
        MEDIA_TYPES[definition.format],  # type: ignore[index]
        content,
    )
