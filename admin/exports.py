"""Exports: downloads for readers of the data, scheduled exports for platform roles."""

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import msgspec

from admin.actor import Actor, readable, require
from admin.audit import record
from admin.transactions import page_size, read, write_system
from billing.exports import definitions, schedule
from billing.exports.dataset_registry import chunks, spool, write_query
from billing.exports.datasets import PLATFORM_ONLY, DatasetName, DatasetQuery
from billing.exports.definitions import ExportDefinition, ExportRun
from billing.exports.fetch import FetchedFile, fetch_run
from billing.exports.schedule_periods import parse_label
from billing.exports.verify import VerificationResult
from billing.exports.verify import verify_exports as verify_files
from billing.exports.writers import MEDIA_TYPES, Format
from billing.usage.query import this_month
from core.db import Database
from core.errors import Conflict, PermissionDenied
from core.settings import Settings
from tenants.names import clean_reason
from tenants.roles import PLATFORM_ROLES


class Download(msgspec.Struct):
    """A file to send. Read `chunks` to its end or close it."""

    name: str
    media_type: str
    rows: int
    sums: dict[str, str]
    """Exact dollars by column of amounts."""
    chunks: Iterator[bytes]


async def download(
    database: Database,
    actor: Actor,
    *,
    dataset: DatasetName,
    format: Format,
    start: datetime,
    end: datetime,
    group_by: tuple[str, ...] = ("tenant", "model"),
    tenant_id: UUID | None = None,
) -> Download:
    """A data set as a file, read in one snapshot, with flat memory. A tenant role gets its own organisation's, without
    GPU cost, and never the platform's data sets.

    Raises InvalidRequest, PermissionDenied.
    """
    scope = readable(actor, tenant_id)
    if not actor.is_platform and dataset in PLATFORM_ONLY:
        raise PermissionDenied(f"the data set {dataset} is for the platform's own people")
    query = DatasetQuery(dataset, start, end, group_by, scope, with_gpu=actor.is_platform)
    stack = ExitStack()
    file = stack.enter_context(spool())
    try:
        async with database.snapshot(actor.tenant_id) as connection:
            tally = await write_query(connection, query, format, file)
    except BaseException:
        stack.close()
        raise
    name = f"{dataset.replace('_', '-')}-{start:%Y%m%d}-{end:%Y%m%d}.{format}"

    def content() -> Iterator[bytes]:
        try:
            yield from chunks(file)
        finally:
            stack.close()

    return Download(name, MEDIA_TYPES[format], tally.rows, tally.sums, content())


async def create_export(
    database: Database,
    actor: Actor,
    *,
    name: str,
    dataset: str = "report",
    format: str = "parquet",
    cadence: str = "daily",
    destination: str,
    group_by: str = "",
    tenant_id: UUID | None = None,
    starts_at: datetime | None = None,
    reason: str | None = None,
) -> ExportDefinition:
    """Schedule an export, from this UTC month on unless `starts_at` says otherwise. Raises InvalidRequest, Conflict."""
    require(actor, *PLATFORM_ROLES)
    async with write_system(database) as connection:
        made = await definitions.create_definition(
            connection,
            name=name,
            dataset=dataset,
            format=format,
            cadence=cadence,
            destination=destination,
            group_by=group_by,
            tenant_id=tenant_id,
            starts_at=starts_at or this_month(datetime.now(UTC))[0],
            created_by=actor.label,
        )
        await record(
            connection,
            actor,
            "export.create",
            tenant_id=tenant_id,
            object_kind="export",
            object_id=made.id,
            reason=None if reason is None else clean_reason(reason),
            after=made,
        )
    return made


async def enable_export(
    database: Database, actor: Actor, *, name: str, enabled: bool, reason: str | None = None
) -> ExportDefinition:
    """Stop or resume a scheduled export; its files stay. Raises NotFound."""
    require(actor, *PLATFORM_ROLES)
    async with write_system(database) as connection:
        before = await definitions.find_definition(connection, name)
        await definitions.set_enabled(connection, before.id, enabled)
        after = msgspec.structs.replace(before, enabled=enabled)
        await record(
            connection,
            actor,
            "export.enable" if enabled else "export.disable",
            tenant_id=before.tenant_id,
            object_kind="export",
            object_id=before.id,
            reason=None if reason is None else clean_reason(reason),
            before=before,
            after=after,
        )
    return after


async def list_exports(database: Database, actor: Actor) -> list[ExportDefinition]:
    """Scheduled exports by name."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return await definitions.list_definitions(connection)


async def list_runs(
    database: Database, actor: Actor, *, name: str | None = None, limit: int = 100
) -> list[ExportRun]:
    """Runs of one export or of all, the newest period first. Raises NotFound."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        definition = None if name is None else await definitions.find_definition(connection, name)
        of = None if definition is None else definition.id
        return await definitions.list_runs(connection, of, page_size(limit))


async def run_export(
    database: Database, actor: Actor, settings: Settings, *, name: str, period: str
) -> ExportRun:
    """Export one period now, such as `2026-11`. Unchanged data is not written again.

    Raises NotFound, InvalidRequest, Conflict while another process exports it, Unavailable.
    """
    async with read(database, actor, PLATFORM_ROLES) as connection:
        definition = await definitions.find_definition(connection, name)
    made = await schedule.run_period(database, settings, definition, parse_label(definition.cadence, period))
    if made is None:
        raise Conflict(f"{definition.name} is being exported right now; try again when that has ended")
    if made.is_new:
        async with write_system(database) as connection:
            await record(
                connection,
                actor,
                "export.run",
                tenant_id=definition.tenant_id,
                object_kind="export",
                object_id=definition.id,
                after={"period": period, "revision": made.revision, "sha256": made.sha256},
            )
    return made


async def fetch(database: Database, actor: Actor, settings: Settings, *, run_id: UUID) -> FetchedFile:
    """The file that a run wrote, checked by its checksum. Raises NotFound, InvalidRequest, Conflict, Unavailable."""
    require(actor, *PLATFORM_ROLES)
    return await fetch_run(database, settings, run_id)


def verify(path: Path) -> list[VerificationResult]:
    """Check the files at or below a path of this machine against their manifests. Raises InvalidRequest."""
    return verify_files(path)
