"""Admin API: the usage report, comparisons of periods, data sets as files, and scheduled exports."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from admin import exports as admin_exports
from admin import usage as admin_usage
from admin.actor import Actor
from api.admin.deps import AdminDeps, RequestBody, ResponseModel
from billing.exports.datasets import DatasetName
from billing.exports.writers import MEDIA_TYPES, Format
from billing.reports.compare import flatten, parse_compare
from billing.reports.report_format import to_objects
from billing.usage.period import parse_group_by, parse_instant, parse_period

FROM = Query(alias="from", max_length=40, description="Date or whole UTC hour; default: this month.")
TO = Query(alias="to", max_length=40, description="Excluded.")
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._=-]{0,99}$", examples=["usage-daily"])]


class ExportOut(ResponseModel):
    """A scheduled export."""

    id: UUID
    name: str
    dataset: str
    format: str
    group_by: str
    schedule: Literal["hourly", "daily", "monthly"] = Field(validation_alias="cadence")
    destination: str
    tenant_id: UUID | None
    enabled: bool
    starts_at: datetime
    created_at: datetime
    created_by: str


class ExportList(BaseModel):
    """Scheduled exports, by name."""

    data: list[ExportOut]


class ExportRunOut(ResponseModel):
    """A revision of the files of a period."""

    id: UUID
    definition_id: UUID
    period_start: datetime
    period_end: datetime
    revision: int
    location: str
    rows: int = Field(validation_alias="row_count")
    sums: dict[str, str]
    sha256: str
    created_at: datetime
    checked_at: datetime
    final: bool
    is_new: bool


class ExportRunList(BaseModel):
    """Revisions, newest period first."""

    data: list[ExportRunOut]


class ExportCreate(RequestBody):
    """An export to schedule. Credentials of its destination are settings of the platform."""

    name: Name
    dataset: DatasetName = "report"
    format: Format = "parquet"
    schedule: Literal["hourly", "daily", "monthly"] = "daily"
    destination: str = Field(min_length=1, max_length=500, examples=["usage", "s3://finance/penstock"])
    group_by: str = Field(default="", max_length=400, examples=["tenant,model"])
    tenant_id: UUID | None = None
    starts_at: datetime | None = Field(default=None, description="First period; default: this UTC month.")
    reason: str | None = Field(default=None, min_length=1, max_length=500)


class ExportUpdate(RequestBody):
    """Stop or resume an export."""

    enabled: bool
    reason: str | None = Field(default=None, min_length=1, max_length=500)


class ExportRunCreate(RequestBody):
    """A period to export now: 2026-11, 2026-11-20 or 2026-11-20T13."""

    period: str = Field(min_length=7, max_length=13)


def router(deps: AdminDeps) -> APIRouter:
    """Routes of reports and exports."""
    routes = deps.router("exports")
    _report_routes(routes, deps)
    _file_routes(routes, deps)
    _schedule_routes(routes, deps)
    return routes


def _report_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get(
        "/usage/report",
        summary="Usage and cost by any grouping, as JSON or a file; optionally compared with another period",
        response_model=None,
        responses={200: {"content": {media: {} for media in MEDIA_TYPES.values()}}},
    )
    async def usage_report(
        actor: Annotated[Actor, auth],
        start: Annotated[str | None, FROM] = None,
        end: Annotated[str | None, TO] = None,
        by: Annotated[str, Query(max_length=400, examples=["tenant,model,day"])] = "tenant",
        tenant_id: UUID | None = None,
        format: Annotated[Format, Query()] = "json",
        compare: Annotated[
            str | None, Query(max_length=90, description="previous, or FROM..TO; as JSON.")
        ] = None,
    ) -> Response | dict[str, Any]:
        period = parse_period(start, end)
        asked: dict[str, Any] = {
            "start": period[0],
            "end": period[1],
            "group_by": parse_group_by(by),
            "tenant_id": tenant_id,
        }
        with_gpu = admin_usage.sees_gpu_cost(actor)
        if compare is not None:
            before = parse_compare(compare, period[0], period[1], parse_instant)
            compared = await admin_usage.compare_usage(deps.for_exports, actor, before=before, **asked)
            return {"data": flatten(compared, with_gpu=with_gpu)}
        if format != "json":
            found = await admin_exports.download(
                deps.for_exports, actor, dataset="report", format=format, **asked
            )
            return _download_response(found)
        rows = await admin_usage.usage_report(deps.for_exports, actor, **asked)
        return {"data": to_objects(rows, with_gpu=with_gpu)}

    @routes.get("/usage/totals", summary="Compare the totals of the report with those of the ledger")
    async def usage_totals(
        actor: Annotated[Actor, auth],
        start: Annotated[str | None, FROM] = None,
        end: Annotated[str | None, TO] = None,
        tenant_id: UUID | None = None,
    ) -> dict[str, Any]:
        period = parse_period(start, end)
        found = await admin_usage.usage_totals(
            deps.for_exports, actor, start=period[0], end=period[1], tenant_id=tenant_id
        )
        plain: dict[str, Any] = msgspec.to_builtins(found)
        return plain


def _file_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get(
        "/exports/download/{dataset}",
        summary="A data set as a file",
        response_model=None,
        responses={200: {"content": {media: {} for media in MEDIA_TYPES.values()}}},
    )
    async def download(
        actor: Annotated[Actor, auth],
        dataset: DatasetName,
        start: Annotated[str | None, FROM] = None,
        end: Annotated[str | None, TO] = None,
        by: Annotated[str, Query(max_length=400)] = "tenant,model",
        tenant_id: UUID | None = None,
        format: Annotated[Format, Query()] = "csv",
    ) -> Response:
        period = parse_period(start, end)
        return _download_response(
            await admin_exports.download(
                deps.for_exports,
                actor,
                dataset=dataset,
                format=format,
                start=period[0],
                end=period[1],
                group_by=parse_group_by(by),
                tenant_id=tenant_id,
            )
        )


def _download_response(found: admin_exports.Download) -> Response:
    return StreamingResponse(
        found.chunks,
        media_type=found.media_type,
        headers={"Content-Disposition": f'attachment; filename="{found.name}"'},
    )


def _schedule_routes(routes: APIRouter, deps: AdminDeps) -> None:
    auth = Depends(deps.actor)

    @routes.get("/exports", summary="Scheduled exports")
    async def list_exports(actor: Annotated[Actor, auth]) -> ExportList:
        rows = await admin_exports.list_exports(deps.database, actor)
        return ExportList(data=[ExportOut.model_validate(row) for row in rows])

    @routes.post("/exports", status_code=201, summary="Schedule an export")
    async def create_export(actor: Annotated[Actor, auth], body: ExportCreate) -> ExportOut:
        facts = body.model_dump()
        cadence = facts.pop("schedule")
        made = await admin_exports.create_export(deps.database, actor, cadence=cadence, **facts)
        return ExportOut.model_validate(made)

    @routes.patch("/exports/{name}", summary="Stop or resume an export")
    async def enable_export(actor: Annotated[Actor, auth], name: str, body: ExportUpdate) -> ExportOut:
        changed = await admin_exports.enable_export(deps.database, actor, name=name, **body.model_dump())
        return ExportOut.model_validate(changed)

    @routes.get("/exports/{name}/runs", summary="List the runs of an export")
    async def list_runs(
        actor: Annotated[Actor, auth], name: str, limit: Annotated[int, Query(ge=1, le=500)] = 100
    ) -> ExportRunList:
        rows = await admin_exports.list_runs(deps.database, actor, name=name, limit=limit)
        return ExportRunList(data=[ExportRunOut.model_validate(row) for row in rows])

    @routes.post("/exports/{name}/runs", summary="Export one period now")
    async def run_export(actor: Annotated[Actor, auth], name: str, body: ExportRunCreate) -> ExportRunOut:
        made = await admin_exports.run_export(
            deps.database, actor, deps.settings, name=name, period=body.period
        )
        return ExportRunOut.model_validate(made)
