"""Scheduled exports: their definitions, and one run: read a period in one snapshot, keep it as a new revision or not.

A run never overwrites. The same content as the last revision is no new revision; changed content of an open period is
the next one (`rNNNN`). The data file comes first, the manifest last: what has a manifest is whole. Killed in between,
the next run finds the file, compares it, and goes on.
"""

import asyncio
import logging
import tempfile
from datetime import UTC, datetime
from io import BytesIO
from typing import IO, Any
from uuid import UUID

import msgspec
from sqlalchemy import Row, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.exports import manifest as manifests
from billing.exports.dataset_registry import open_dataset
from billing.exports.datasets import (
    DATASETS,
    PLATFORM_ONLY,
    Dataset,
    DatasetQuery,
    WriteTotals,
    write_dataset,
)
from billing.exports.failures import clear_failure, list_failures, record_failure
from billing.exports.manifest import Manifest
from billing.exports.schedule_periods import PeriodState, due_periods, label, unit_of
from billing.exports.stores import Store, check_destination, open_store, path_parts, sha256_of
from billing.exports.tables import export_definitions, export_runs
from billing.exports.writers import FORMATS
from billing.reports.books import closed_months
from billing.usage.query import DIMENSIONS, ReportQuery, bucket_end, check_query, months_of
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound
from core.ids import uuid7
from core.settings import Settings
from tenants.scoping import platform_wide

log = logging.getLogger(__name__)

MAX_REVISIONS = 9999
MAX_CONSECUTIVE_FAILURES = 3
"""Failures in a row that end a definition's turn."""


class ExportDefinition(msgspec.Struct, frozen=True):
    """A scheduled export."""

    id: UUID
    name: str
    dataset: str
    format: str
    group_by: str
    cadence: str
    """hourly | daily | monthly"""
    destination: str
    tenant_id: UUID | None
    enabled: bool
    starts_at: datetime
    created_at: datetime
    created_by: str


class ExportRun(msgspec.Struct, frozen=True):
    """A revision of a period's files. `is_new` is False when a run found nothing changed."""

    id: UUID
    definition_id: UUID
    period_start: datetime
    period_end: datetime
    revision: int
    location: str
    row_count: int
    sums: dict[str, str]
    sha256: str
    created_at: datetime
    checked_at: datetime
    final: bool
    is_new: bool = False


@platform_wide("what is exported where is decided by platform people; an export may be of all organisations")
async def create_definition(
    connection: AsyncConnection,
    *,
    name: str,
    dataset: str,
    format: str,
    cadence: str,
    destination: str,
    group_by: str,
    tenant_id: UUID | None,
    starts_at: datetime,
    created_by: str,
) -> ExportDefinition:
    """Add a definition. Raises InvalidRequest, and Conflict for a name that is taken."""
    _check_definition(name, dataset, format, cadence, destination, group_by, tenant_id, starts_at)
    taken = await connection.scalar(select(export_definitions.c.id).where(export_definitions.c.name == name))
    if taken is not None:
        raise Conflict(f"there is an export named {name!r} already", param="name")
    statement = (
        insert(export_definitions)
        .values(
            id=uuid7(),
            name=name,
            dataset=dataset,
            format=format,
            cadence=cadence,
            destination=destination,
            group_by=group_by,
            tenant_id=tenant_id,
            starts_at=starts_at,
            created_by=created_by,
        )
        .returning(*export_definitions.c)
    )
    return _definition((await connection.execute(statement)).one())


def _check_definition(
    name: str,
    dataset: str,
    format: str,
    cadence: str,
    destination: str,
    group_by: str,
    tenant_id: UUID | None,
    starts_at: datetime,
) -> None:
    if len(path_parts(name, "name")) != 1:
        raise InvalidRequest("name must be one word of letters, digits, '.', '_' and '-'", param="name")
    if dataset not in DATASETS:
        raise InvalidRequest(
            f"dataset must be one of {', '.join(DATASETS)}, not {dataset[:40]!r}", param="dataset"
        )
    if format not in FORMATS:
        raise InvalidRequest(
            f"format must be one of {', '.join(FORMATS)}, not {format[:40]!r}", param="format"
        )
    if tenant_id is not None and dataset in PLATFORM_ONLY:
        raise InvalidRequest(f"{dataset} is never an organisation's", param="tenant_id")
    if cadence != "monthly" and dataset == "invoices":
        raise InvalidRequest("invoices are exported monthly", param="schedule")
    check_destination(destination)
    start = starts_at
    if dataset == "report":
        check_query(ReportQuery(start, bucket_end(start, unit_of(cadence)), parse_group_by(group_by)))
    elif group_by and group_by not in DIMENSIONS[-3:]:
        raise InvalidRequest(f"{dataset} is grouped by hour, day or month or not at all", param="group_by")
    unit_of(cadence)


def parse_group_by(group_by: str) -> tuple[str, ...]:
    """A grouping as it is stored; empty = by organisation and model."""
    return tuple(name for part in group_by.split(",") if (name := part.strip())) or ("tenant", "model")


@platform_wide("what is exported where is decided by platform people; an export may be of all organisations")
async def list_definitions(connection: AsyncConnection) -> list[ExportDefinition]:
    """All definitions by name."""
    rows = await connection.execute(select(*export_definitions.c).order_by(export_definitions.c.name))
    return [_definition(row) for row in rows]


async def find_definition(connection: AsyncConnection, name: str) -> ExportDefinition:
    """The definition of that name or id. Raises NotFound."""
    for one in await list_definitions(connection):
        if name in (one.name, str(one.id)):
            return one
    raise NotFound(f"there is no export {name[:80]!r}")


@platform_wide("what is exported where is decided by platform people; an export may be of all organisations")
async def set_enabled(connection: AsyncConnection, definition_id: UUID, enabled: bool) -> None:
    """Stop or resume a definition; what it wrote stays."""
    await connection.execute(
        update(export_definitions).where(export_definitions.c.id == definition_id).values(enabled=enabled)
    )


async def list_runs(
    connection: AsyncConnection, definition_id: UUID | None = None, limit: int = 100
) -> list[ExportRun]:
    """Revisions, the newest period first."""
    statement = select(*export_runs.c).order_by(
        export_runs.c.period_start.desc(), export_runs.c.revision.desc(), export_runs.c.id
    )
    if definition_id is not None:
        statement = statement.where(export_runs.c.definition_id == definition_id)
    return [_run(row) for row in await connection.execute(statement.limit(limit))]


async def run_due(database: Database, settings: Settings) -> int:
    """Write every period that is due of every enabled definition; returns how many files are new.

    What cannot be written stays due, with its error, and does not stop later periods or other definitions; the first
    error is raised at the end.
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
    """Write what is due of one definition; returns how many files are new, and adds to `failures`.

    A few failures in a row end its turn: its store is likely away, and every try may wait long.
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
    """Export one period now. None when another process is at this definition.

    Raises Unavailable when the store does not take the files, InvalidRequest for a destination that leads elsewhere.
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
    """A data file that was written to a temporary place, with what its manifest will say."""

    dataset: Dataset
    tally: WriteTotals
    start: datetime
    end: datetime
    sha256: str
    size: int
    snapshot: str
    at: datetime
    final: bool


@platform_wide("what is exported where is decided by platform people; an export may be of all organisations")
async def _claim(connection: AsyncConnection, definition_id: UUID) -> bool:
    """Whether this transaction may run the definition; another's claim ends with its transaction."""
    found = await connection.execute(
        select(export_definitions.c.id)
        .where(export_definitions.c.id == definition_id)
        .with_for_update(skip_locked=True)
    )
    return found.one_or_none() is not None


async def _write_file(
    database: Database, definition: ExportDefinition, start: datetime, end: datetime, file: IO[bytes]
) -> _DataFile:
    """Read the period in one snapshot into `file`."""
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
    """Put the file and its manifest under the next free revision."""
    period = label(definition.cadence, data_file.start)
    name = f"{definition.dataset}.{definition.format}"
    for revision in range(1 if latest is None else latest.revision + 1, MAX_REVISIONS + 1):
        folder = f"{definition.name}/{period}/r{revision:04d}"
        path = f"{folder}/{name}"
        if not store.put_new(path, file) and store.digest(path) != data_file.sha256:
            continue  # left by a run that died, of content that has changed since
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
    return _run((await claim.execute(statement)).one(), is_new=True)


async def _mark_checked(claim: AsyncConnection, latest: ExportRun, final: bool) -> ExportRun:
    statement = (
        update(export_runs)
        .where(export_runs.c.id == latest.id)
        .values(checked_at=text("clock_timestamp()"), final=final)
        .returning(*export_runs.c)
    )
    return _run((await claim.execute(statement)).one())


async def _latest_run(connection: AsyncConnection, definition_id: UUID, start: datetime) -> ExportRun | None:
    statement = (
        select(*export_runs.c)
        .where(export_runs.c.definition_id == definition_id, export_runs.c.period_start == start)
        .order_by(export_runs.c.revision.desc())
        .limit(1)
    )
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else _run(row)


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


def _definition(row: Row[Any]) -> ExportDefinition:
    return ExportDefinition(**row._mapping)


def _run(row: Row[Any], *, is_new: bool = False) -> ExportRun:
    return ExportRun(**row._mapping, is_new=is_new)
