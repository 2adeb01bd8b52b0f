"""Definitions of scheduled exports, and the list of their runs."""

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Row, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.exports.datasets import DATASETS, PLATFORM_ONLY
from billing.exports.schedule_periods import unit_of
from billing.exports.stores import check_destination, path_parts
from billing.exports.tables import export_definitions, export_runs
from billing.exports.writers import FORMATS
from billing.usage.query import DIMENSIONS, ReportQuery, bucket_end, check_query
from core.errors import Conflict, InvalidRequest, NotFound
from core.ids import uuid7
from tenants.scoping import platform_wide


class ExportDefinition(msgspec.Struct, frozen=True):
    """The definition of a scheduled export."""

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
    """A stored revision of a period's file; `is_new` when the present run wrote it."""

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


@platform_wide("operators define exports; an export may be of all organisations")
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
    """Add a definition.

    `name` is one path part; `destination` a folder or `s3://bucket/prefix`; `group_by` as `parse_group_by` reads it;
    periods from `starts_at` on are exported. Raises InvalidRequest for an invalid argument, Conflict for a name in use.
    """
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
    """The dimensions of a comma-separated grouping; an empty one = organisation and model."""
    return tuple(name for part in group_by.split(",") if (name := part.strip())) or ("tenant", "model")


@platform_wide("operators define exports; an export may be of all organisations")
async def list_definitions(connection: AsyncConnection) -> list[ExportDefinition]:
    """All definitions by name."""
    rows = await connection.execute(select(*export_definitions.c).order_by(export_definitions.c.name))
    return [_definition(row) for row in rows]


async def find_definition(connection: AsyncConnection, name: str) -> ExportDefinition:
    """The definition with this name or id. Raises NotFound."""
    for one in await list_definitions(connection):
        if name in (one.name, str(one.id)):
            return one
    raise NotFound(f"there is no export {name[:80]!r}")


@platform_wide("operators define exports; an export may be of all organisations")
async def set_enabled(connection: AsyncConnection, definition_id: UUID, enabled: bool) -> None:
    """Enable or disable a definition; its files stay."""
    await connection.execute(
        update(export_definitions).where(export_definitions.c.id == definition_id).values(enabled=enabled)
    )


async def list_runs(
    connection: AsyncConnection, definition_id: UUID | None = None, limit: int = 100
) -> list[ExportRun]:
    """At most `limit` revisions of a definition (None = all), newest period and revision first."""
    statement = select(*export_runs.c).order_by(
        export_runs.c.period_start.desc(), export_runs.c.revision.desc(), export_runs.c.id
    )
    if definition_id is not None:
        statement = statement.where(export_runs.c.definition_id == definition_id)
    return [run_from_row(row) for row in await connection.execute(statement.limit(limit))]


def _definition(row: Row[Any]) -> ExportDefinition:
    return ExportDefinition(**row._mapping)


def run_from_row(row: Row[Any], *, is_new: bool = False) -> ExportRun:
    """The run of a row of export_runs."""
    return ExportRun(**row._mapping, is_new=is_new)
