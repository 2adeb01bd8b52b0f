"""Runs scheduled exports: reads a period in one snapshot and stores it as a new revision when it has changed.

A run never overwrites a file. Content equal to the latest revision makes no new revision; changed content becomes the
next one (`rNNNN`). The data file is stored before its manifest, so a revision with a manifest is complete. After a
crash between both, the next run finds the data file, compares it and stores the manifest.
"""

import asyncio
import logging
import tempfile
from datetime import UTC, datetime
from io import BytesIO
from typing import IO
from uuid import UUID

import msgspec
from sqlalchemy import insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.exports import manifest as manifests
from billing.exports.dataset_registry import open_dataset
from billing.exports.datasets import (
    Dataset,
    DatasetQuery,
    WriteTotals,
    write_dataset,
)
from billing.exports.definitions import (
    ExportDefinition,
    ExportRun,
    list_definitions,
    parse_group_by,
    run_from_row,
)
from billing.exports.failures import clear_failure, list_failures, record_failure
from billing.exports.manifest import Manifest
from billing.exports.schedule_periods import PeriodState, due_periods, label, unit_of
from billing.exports.stores import Store, open_store, sha256_of
from billing.exports.tables import export_definitions, export_runs
from billing.reports.books import closed_months
from billing.usage.query import bucket_end, months_of
from core.db import Database
from core.errors import Conflict
from core.ids import uuid7
from core.settings import Settings
from tenants.scoping import platform_wide

log = logging.getLogger(__name__)

MAX_REVISIONS = 9999
"""Revisions of one period."""
MAX_CONSECUTIVE_FAILURES = 3
"""Consecutive failures after which a run skips the definition's remaining periods."""


async def run_due(database: Database, settings: Settings) -> int:
    """Export every due period of every enabled definition; returns how many files are new.

    A failed period stays due with its error and does not stop other periods or definitions; the first error is raised
    at the end.
    """
    async with database.read() as connection:
        now: datetime = (await connection.execute(text("SELECT clock_timestamp()"))).scalar_one()
        definitions = [one for one in await list_definitions(connection) if one.enabled]
    new = 0
    failures: list[Exception] = []
    for definition in definitions:
        new += await _run_definition(database, settings, definition, now, failures)
    if failures:
        raise failures[0]
    return new


async def _run_definition(
    database: Database,
    settings: Settings,
    definition: ExportDefinition,
    now: datetime,
    failures: list[Exception],
) -> int:
    """Export the due periods of one definition; returns how many files are new, and appends errors to `failures`.

    Stops after MAX_CONSECUTIVE_FAILURES: the store is probably unavailable, and every attempt may wait for a timeout.
    """
    async with database.read() as connection:
        states = await _period_states(connection, definition.id)
        failed = {one.period_start: one.next_at for one in await list_failures(connection, definition.id)}
    new = consecutive = 0
    for start in due_periods(definition.cadence, definition.starts_at, now, states, failed):
        try:
            made = await run_period(database, settings, definition, start)
            new += made is not None and made.is_new
            consecutive = 0
        except Exception as error:
            log.warning("export %s of %s failed", definition.name, start, exc_info=error)
            failures.append(error)
            async with database.system() as connection:
                await record_failure(connection, definition.id, start, error)
            consecutive += 1
        if consecutive == MAX_CONSECUTIVE_FAILURES:
            break
    return new


async def run_period(
    database: Database, settings: Settings, definition: ExportDefinition, start: datetime
) -> ExportRun | None:
    """Export the period that begins at `start`. Returns None when another process exports this definition.

    Raises Unavailable when the store does not accept the files, InvalidRequest for a destination outside of the export
    folder, Conflict beyond MAX_REVISIONS or for bad data.
    """
    end = bucket_end(start, unit_of(definition.cadence))
    store = await asyncio.to_thread(open_store, definition.destination, settings)
    async with database.system() as claim:
        if not await _claim(claim, definition.id):
            return None
        with tempfile.TemporaryFile(prefix="penstock-export-") as file:
            data_file = await _write_file(database, definition, start, end, file)
            latest = await _latest_run(claim, definition.id, start)
            if latest is not None and latest.sha256 == data_file.sha256:
                await clear_failure(claim, definition.id, start)
                return await _mark_checked(claim, latest, data_file.final)
            draft = await asyncio.to_thread(_store_revision, store, definition, data_file, file, latest)
        await clear_failure(claim, definition.id, start)
        return await _insert_run(claim, definition, draft, data_file.final, store)


class _DataFile(msgspec.Struct):
    """A data file in a temporary place, with the figures of its manifest."""

    dataset: Dataset
    tally: WriteTotals
    start: datetime
    end: datetime
    sha256: str
    size: int
    snapshot: str
    at: datetime
    final: bool


@platform_wide("operators define exports; an export may be of all organisations")
async def _claim(connection: AsyncConnection, definition_id: UUID) -> bool:
    """Claim the definition until the transaction ends; False when another transaction has claimed it."""
    found = await connection.execute(
        select(export_definitions.c.id)
        .where(export_definitions.c.id == definition_id)
        .with_for_update(skip_locked=True)
    )
    return found.one_or_none() is not None


async def _write_file(
    database: Database, definition: ExportDefinition, start: datetime, end: datetime, file: IO[bytes]
) -> _DataFile:
    """Write the period, read in one snapshot, to `file`."""
    query = DatasetQuery(
        definition.dataset,  # type: ignore[arg-type]  # checked when it was made
        start,
        end,
        parse_group_by(definition.group_by) if definition.dataset == "report" else (definition.group_by,),
        definition.tenant_id,
        with_gpu=definition.tenant_id is None,
    )
    async with database.snapshot() as connection:
        row = (
            await connection.execute(text("SELECT pg_current_snapshot()::text AS name, now() AS at"))
        ).one()
        months = months_of(start, end)
        final = len(await closed_months(connection, months)) == len(months)
        dataset = open_dataset(connection, query)
        tally = await write_dataset(dataset, definition.format, file)  # type: ignore[arg-type]  # checked as above
    size = file.tell()
    file.seek(0)
    digest = await asyncio.to_thread(sha256_of, file)
    return _DataFile(dataset, tally, start, end, digest, size, row.name, row.at, final)


def _store_revision(
    store: Store,
    definition: ExportDefinition,
    data_file: _DataFile,
    file: IO[bytes],
    latest: ExportRun | None,
) -> Manifest:
    """Store the file and its manifest as the next free revision. Blocking."""
    period = label(definition.cadence, data_file.start)
    name = f"{definition.dataset}.{definition.format}"
    for revision in range(1 if latest is None else latest.revision + 1, MAX_REVISIONS + 1):
        folder = f"{definition.name}/{period}/r{revision:04d}"
        path = f"{folder}/{name}"
        if not store.put_new(path, file) and store.digest(path) != data_file.sha256:
            continue  # left by a crashed run, with content that has changed since
        draft = _manifest(definition, data_file, name, revision)
        manifest_path = f"{folder}/{manifests.FILE_NAME}"
        if not store.put_new(manifest_path, BytesIO(manifests.encode(draft))):
            stored = manifests.decode(store.read(manifest_path) or b"")
            if stored.sha256 != data_file.sha256:
                continue
            draft = stored
        return draft
    raise Conflict(f"{definition.name} has {MAX_REVISIONS} revisions of {period}; nothing more is written")


def _manifest(definition: ExportDefinition, data_file: _DataFile, name: str, revision: int) -> Manifest:
    return Manifest(
        schema=manifests.SCHEMA,
        name=definition.name,
        dataset=definition.dataset,
        columns_version=data_file.dataset.version,
        format=definition.format,
        file=name,
        period_start=data_file.start,
        period_end=data_file.end,
        revision=revision,
        group_by=definition.group_by,
        tenant_id=definition.tenant_id,
        rows=data_file.tally.rows,
        sums=data_file.tally.sums,
        sha256=data_file.sha256,
        bytes=data_file.size,
        columns=manifests.column_types(data_file.dataset.columns),
        snapshot=data_file.snapshot,
        created_at=data_file.at.astimezone(UTC),
    )


async def _insert_run(
    claim: AsyncConnection, definition: ExportDefinition, draft: Manifest, final: bool, store: Store
) -> ExportRun:
    folder = f"{definition.name}/{label(definition.cadence, draft.period_start)}/r{draft.revision:04d}"
    statement = (
        insert(export_runs)
        .values(
            id=uuid7(),
            definition_id=definition.id,
            period_start=draft.period_start,
            period_end=draft.period_end,
            revision=draft.revision,
            location=store.location(f"{folder}/{draft.file}"),
            row_count=draft.rows,
            sums=draft.sums,
            sha256=draft.sha256,
            final=final,
        )
        .returning(*export_runs.c)
    )
    return run_from_row((await claim.execute(statement)).one(), is_new=True)


async def _mark_checked(claim: AsyncConnection, latest: ExportRun, final: bool) -> ExportRun:
    statement = (
        update(export_runs)
        .where(export_runs.c.id == latest.id)
        .values(checked_at=text("clock_timestamp()"), final=final)
        .returning(*export_runs.c)
    )
    return run_from_row((await claim.execute(statement)).one())


async def _latest_run(connection: AsyncConnection, definition_id: UUID, start: datetime) -> ExportRun | None:
    statement = (
        select(*export_runs.c)
        .where(export_runs.c.definition_id == definition_id, export_runs.c.period_start == start)
        .order_by(export_runs.c.revision.desc())
        .limit(1)
    )
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else run_from_row(row)


async def _period_states(connection: AsyncConnection, definition_id: UUID) -> dict[datetime, PeriodState]:
    statement = (
        select(export_runs.c.period_start, export_runs.c.checked_at, export_runs.c.final)
        .where(export_runs.c.definition_id == definition_id)
        .order_by(export_runs.c.revision)
    )
    return {
        row.period_start: PeriodState(row.checked_at, row.final)
        for row in await connection.execute(statement)
    }
