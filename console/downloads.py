"""Files that pages link to. AccessMiddleware checks session and role; this module and admin/ apply the tenant scope."""

from datetime import date
from uuid import UUID

from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from admin import exports as admin_exports
from admin import statements as admin_statements
from admin.access_review import MEDIA_TYPES, list_access, to_file
from billing.exports.datasets import DATASETS
from billing.exports.writers import FORMATS
from console.deps import Console
from console.panels.report_choice import read_options, report_query
from console.plain import message_page
from console.viewer import Viewer
from core.errors import NotFound, PenstockError, PermissionDenied


def add_downloads(app: FastAPI, console: Console) -> None:
    """Register every download below the path of a page, whose roles it shares."""
    _add_usage(app, console)
    for prefix in ("/billing/statements", "/tenants/{tenant_id}/statements"):
        _add_statement(app, console, prefix)
    _add_receipt(app, console)
    for prefix in ("/account", "/tenants/{tenant_id}"):
        _add_access_review(app, console, prefix)


def _attached(content: bytes, media_type: str, name: str) -> Response:
    return Response(
        content, media_type=media_type, headers={"content-disposition": f'attachment; filename="{name}"'}
    )


async def _refused(request: Request, error: Exception) -> Response:
    """The error as a message page."""
    if isinstance(error, PenstockError):
        viewer: Viewer = request.state.viewer
        await viewer.refused(request.scope["route"].path, error)
    if isinstance(error, NotFound):
        return message_page(404, "Not found", error.message)
    if isinstance(error, PermissionDenied):
        return message_page(403, "Not for your role", error.message)
    return message_page(400, "No file", str(error))


def _add_usage(app: FastAPI, console: Console) -> None:
    @app.get("/usage/download")
    async def usage(request: Request) -> Response:
        """The usage report that the address selects, or the FOCUS charges of its period, streamed."""
        viewer: Viewer = request.state.viewer
        params = request.query_params
        choice = read_options(params, is_platform=viewer.is_platform)
        name, format = params.get("dataset", "report"), params.get("format", "csv")
        if name not in DATASETS or format not in FORMATS:
            return message_page(400, "No file", "There is no such data set or format.")
        try:
            query, period = report_query(choice, viewer, console.clock.now().date())
            made = await admin_exports.download(
                console.database,
                viewer.actor,
                dataset=name,
                format=format,
                start=query.start,
                end=query.end,
                group_by=query.group_by,
                tenant_id=query.tenant_id,
            )
        except (ValueError, PenstockError) as error:
            return await _refused(request, error)
        stem = "usage" if name == "report" else name.replace("_", "-")
        file = f"penstock-{stem}-{period.first}-to-{period.last}.{format}"
        return StreamingResponse(
            made.chunks,
            media_type=made.media_type,
            headers={"content-disposition": f'attachment; filename="{file}"'},
        )


def _add_statement(app: FastAPI, console: Console, prefix: str) -> None:
    @app.get(prefix + "/{month}.{kind}")
    async def statement(request: Request, month: str, kind: str) -> Response:
        """The signed statement of a month (YYYY-MM) as PDF or JSON; a draft while the month is open."""
        viewer: Viewer = request.state.viewer
        try:
            first = date.fromisoformat(f"{month}-01")
            tenant_id = viewer.scope or UUID(request.path_params["tenant_id"])
        except (ValueError, KeyError):
            return message_page(404, "Not found", "There is no such statement.")
        if kind not in ("pdf", "json"):
            return message_page(404, "Not found", "Statements are PDF or JSON.")
        try:
            made = await admin_statements.get_statement(
                console.database, viewer.actor, settings=console.settings, tenant_id=tenant_id, month=first
            )
        except PenstockError as error:
            return await _refused(request, error)
        name = f"penstock-statement-{made.month}{'' if made.final else '-draft'}.{kind}"
        if kind == "pdf":
            return _attached(made.pdf, "application/pdf", name)
        return _attached(made.document, "application/json", name)


def _add_receipt(app: FastAPI, console: Console) -> None:
    @app.get("/requests/{request_id}/receipt")
    async def receipt(request: Request, request_id: str) -> Response:
        """The signed receipt of a request. Platform roles name the organisation in the address."""
        viewer: Viewer = request.state.viewer
        try:
            wanted = UUID(request_id)
            tenant_id = viewer.scope or UUID(request.query_params.get("tenant", ""))
        except ValueError:
            return message_page(404, "Not found", "There is no such request.")
        try:
            document = await admin_statements.get_receipt(
                console.database,
                viewer.actor,
                settings=console.settings,
                tenant_id=tenant_id,
                request_id=wanted,
            )
        except PenstockError as error:
            return await _refused(request, error)
        return _attached(document, "application/json", f"penstock-receipt-{wanted}.json")


def _add_access_review(app: FastAPI, console: Console, prefix: str) -> None:
    @app.get(prefix + "/access-review.csv")
    async def access_review(request: Request) -> Response:
        """Every person, token, open session and key of an organisation, or of the platform and all of them."""
        viewer: Viewer = request.state.viewer
        try:
            wanted = request.path_params.get("tenant_id")
            tenant_id = viewer.scope or (None if wanted is None else UUID(wanted))
            rows = await list_access(console.database, viewer.actor, tenant_id=tenant_id)
        except ValueError:
            return message_page(404, "Not found", "There is no such organisation.")
        except PenstockError as error:
            return await _refused(request, error)
        return _attached(to_file(rows, "csv"), MEDIA_TYPES["csv"], "penstock-access-review.csv")
