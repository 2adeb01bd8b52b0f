"""The console's ASGI application: sign-in, health, downloads, and the pages behind the gate."""

import logging
from collections.abc import Awaitable, Callable

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from nicegui import app as nicegui_app
from nicegui import ui
from redis.exceptions import RedisError
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from starlette.staticfiles import StaticFiles

from admin.adapter_upload import UPLOAD_S
from console.access import AccessMiddleware, AccessRules
from console.deps import Console
from console.downloads import add_downloads
from console.layout import frame
from console.pages import (
    account,
    adapters,
    alerts,
    audit,
    billing,
    finance,
    home,
    invoice,
    models,
    overview,
    periods,
    pools,
    reconciliation,
    requests,
    tenant,
    tenants,
    usage,
)
from console.pages import request as request_page
from console.panels.adapters import UPLOAD_PATH
from console.plain import STATIC, asset_version, message_page
from console.sign_in import add_sign_in
from console.viewer import PLATFORM_ROLES, TENANT_ROLES, Viewer
from core.body_deadline import BodyDeadline
from core.errors import NotFound, PenstockError, PermissionDenied
from core.supervise import FAILING

log = logging.getLogger(__name__)


class Page(msgspec.Struct, frozen=True):
    """A page of the console: its path, the roles that may open it, and the function that draws it."""

    path: str
    title: str
    roles: frozenset[str]
    build: Callable[[Console, Viewer, Request], Awaitable[None]]
    nav: str = ""
    """Path of the page's navigation item; empty = `path`."""


PAGES = (
    Page("/overview", "Overview", PLATFORM_ROLES, overview.build),
    Page("/tenants", "Tenants", PLATFORM_ROLES, tenants.build),
    Page("/tenants/{tenant_id}", "Tenant", PLATFORM_ROLES, tenant.build, nav="/tenants"),
    Page("/models", "Models and prices", PLATFORM_ROLES, models.build),
    Page("/pools", "Pools", PLATFORM_ROLES, pools.build),
    Page("/usage", "Usage", PLATFORM_ROLES | TENANT_ROLES, usage.build),
    Page("/periods", "Billing", PLATFORM_ROLES, periods.build),
    Page("/finance", "Finance", PLATFORM_ROLES, finance.build),
    Page("/reconciliation", "Reconciliation", PLATFORM_ROLES, reconciliation.build),
    Page("/invoices/{ref}", "Invoice", PLATFORM_ROLES | TENANT_ROLES, invoice.build, nav="/periods"),
    Page("/requests", "Requests", PLATFORM_ROLES | TENANT_ROLES, requests.build),
    Page(
        "/requests/{request_id}",
        "Request",
        PLATFORM_ROLES | TENANT_ROLES,
        request_page.build,
        nav="/requests",
    ),
    Page("/alerts", "Alerts", PLATFORM_ROLES | TENANT_ROLES, alerts.build),
    Page("/audit", "Audit log", PLATFORM_ROLES, audit.build),
    Page("/account", "Account", PLATFORM_ROLES | TENANT_ROLES, account.build),
    Page("/home", "Home", TENANT_ROLES, home.build),
    Page("/billing", "Billing", TENANT_ROLES, billing.build),
    Page("/adapters", "Adapters", TENANT_ROLES, adapters.build),
)


def create_app(console: Console) -> FastAPI:
    """The whole console as one ASGI application. Call it once per process: NiceGUI's application is global."""
    app = FastAPI(title="Penstock console", docs_url=None, redoc_url=None, openapi_url=None)
    _add_health(app, console)
    add_sign_in(app, console)
    add_downloads(app, console)
    finance.add_export_download(app, console)
    adapters.add_upload(app, console)
    app.mount("/static", StaticFiles(directory=STATIC), name="console-static")
    version = asset_version()
    ui.add_head_html(
        f'<script src="/static/theme.js?v={version}"></script>'
        f'<link rel="stylesheet" href="/static/console.css?v={version}">'
        f'<script defer src="/static/console.js?v={version}"></script>',
        shared=True,
    )
    for page in PAGES:
        _add_page(console, page)
    ui.run_with(
        app,
        title="Penstock",
        favicon=STATIC / "mark.svg",
        dark=None,
        language="en-US",
        tailwind=False,
        binding_refresh_interval=None,
        reconnect_timeout=5.0,
        show_welcome_message=False,
    )
    nicegui_app.config.quasar_config["loadingBar"] = {"skipHijack": True}
    access = AccessRules([(page.path.split("/{")[0], page.roles) for page in PAGES])
    app.add_middleware(
        AccessMiddleware, sessions=console.sessions, access=access, addresses=console.addresses
    )
    app.add_middleware(BodyDeadline, longer={UPLOAD_PATH: UPLOAD_S})
    return app


def _add_page(console: Console, page: Page) -> None:
    """Register `page`. An error raised before the response starts becomes a message page with its HTTP status."""

    async def show(request: Request) -> Response | None:
        viewer: Viewer = request.state.viewer
        theme = request.cookies.get("penstock_theme")
        ui.dark_mode({"dark": True, "light": False}.get(theme or ""))
        try:
            with frame(viewer, page.nav or page.path):
                await page.build(console, viewer, request)
        except NotFound as error:
            return message_page(404, "Not found", error.message)
        except PermissionDenied as error:
            await viewer.refused(page.path, error)
            return message_page(403, "Not for your role", error.message)
        except PenstockError as error:
            return message_page(503, "Not available", error.message)
        except Exception:
            log.exception("the page %s failed", page.path)
            return message_page(
                500, "Something went wrong", "The page could not be drawn. Try again in a moment."
            )
        return None

    ui.page(page.path, title=f"{page.title} · Penstock", dark=None, response_timeout=20.0)(show)


def _add_health(app: FastAPI, console: Console) -> None:
    @app.get("/healthz")
    async def healthz() -> PlainTextResponse:
        """Liveness: always 200."""
        return PlainTextResponse("ok\n")

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        """Readiness: 200 when PostgreSQL and Redis answer and no background task keeps failing, else 503."""
        parts: dict[str, bool] = {}
        try:
            async with console.database.read() as connection:
                await connection.execute(text("SELECT 1"))
            parts["database"] = True
        except (SQLAlchemyError, OSError, TimeoutError):
            log.warning("not ready: the database does not answer")
            parts["database"] = False
        try:
            parts["redis"] = bool(await console.redis.ping())
        except RedisError:
            parts["redis"] = False
        parts |= {f"task {name}": False for name in FAILING.names()}
        return JSONResponse({"ready": all(parts.values()), **parts}, 200 if all(parts.values()) else 503)
