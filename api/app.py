"""The HTTP application: FastAPI for all routes except inference, which the hot path serves before FastAPI's routing."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from sqlalchemy.exc import DBAPIError
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from admin.adapter_upload import UPLOAD_S
from api import cors, errors, health, openapi
from api.admin.deps import Acting
from api.customer import anthropic, hotpath, llms_txt, models, not_available, responses
from api.customer.member_deps import PREFIX
from api.customer.model_views import ModelViews
from api.deps import Deps
from api.edges import AnswerHeaders
from api.invalid_requests import invalid_request
from api.key_restrictions import KeyRestrictions
from api.read_pace import ReadPace
from api.request_rates import InvalidRequestRate, ListingRate
from core.body_deadline import BodyDeadline
from core.client_address import ClientAddresses
from core.db import timed_out
from core.errors import Conflict, InvalidRequest, NotFound, PenstockError, PermissionDenied
from gateway.open_requests import StreamTimeouts
from gateway.parsing.budget import BodyBudget

_ERROR_BY_STATUS: dict[int, type[PenstockError]] = {404: NotFound, 403: PermissionDenied, 409: Conflict}


class PenstockApp(FastAPI):
    """A FastAPI application whose inference routes bypass its router. A slash at a path's end means nothing."""

    hot: hotpath.HotPath
    others: AnswerHeaders
    origins: Callable[[], frozenset[str]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Dispatch inference requests to the hot path and all others to FastAPI."""
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        path = scope["path"]
        if path[-1:] == "/" and len(path) > 1:
            path = scope["path"] = path.rstrip("/") or "/"
        if scope["method"] == "OPTIONS" and cors.is_preflight(scope, self.origins()):
            await cors.answer_preflight(scope, send)
        elif path in hotpath.ROUTES:
            await self.hot(scope, receive, send)
        else:
            await self.others(scope, receive, send)


def create_app(deps: Deps, extra: Sequence[APIRouter] = ()) -> PenstockApp:
    """Create the application of one process, which starts and closes `deps`. `extra`: further routers."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await deps.start()
        try:
            yield
        finally:
            await deps.close()

    app = PenstockApp(
        title="Penstock",
        summary="Serverless LLM inference, metered to the token. OpenAI-compatible under /v1.",
        lifespan=lifespan,
        docs_url="/docs",
        redoc_url=None,
        openapi_url="/openapi.json",
    )
    app.others = AnswerHeaders(super(PenstockApp, app).__call__, deps.keys)
    app.origins = lambda: deps.keys.origins
    settings, addresses = deps.settings, ClientAddresses(deps.settings.trusted_proxies)
    restrictions = KeyRestrictions(addresses)
    app.hot = hotpath.HotPath(
        deps.keys,
        deps.rates,
        deps.parser,
        deps.director,
        deps.open_requests,
        deps.telemetry,
        InvalidRequestRate(settings.invalid_per_address_per_min, addresses, time.monotonic),
        BodyBudget(settings.request_memory_mb * 2**19),
        restrictions,
        deps.counts,
        deps.responses,
        deps.background,
        deps.streams,
        deps.models,
    )
    app.add_middleware(BodyDeadline, longer={f"{PREFIX}/adapters": UPLOAD_S})
    app.add_middleware(
        ListingRate, per_min=settings.listings_per_min, addresses=addresses, now=time.monotonic
    )
    app.add_middleware(ReadPace, rule=StreamTimeouts())
    app.include_router(health.router(deps.checks))
    view = ModelViews(deps.models, deps.prices, deps.availability, deps.scheduler)
    app.include_router(models.router(deps.keys, view, deps.models, restrictions))
    app.include_router(
        responses.router(deps.keys, deps.responses, deps.running, deps.events, deps.streams, restrictions)
    )
    app.include_router(llms_txt.router(app))
    app.include_router(not_available.router(hotpath.ROUTES))
    for router in extra:
        app.include_router(router)
    _install_error_handlers(app)
    openapi.install(app)
    return app


def _install_error_handlers(app: FastAPI) -> None:
    """Answer every error in OpenAI's shape or Anthropic's, FastAPI's own errors included."""

    @app.exception_handler(PenstockError)
    async def on_domain_error(request: Request, error: PenstockError) -> Response:
        acting: Acting | None = getattr(request.state, "acting", None)
        if acting is not None:
            await acting.refused(request, error)
        return _error_response(request, error)

    @app.exception_handler(RequestValidationError)
    async def on_invalid(request: Request, error: RequestValidationError) -> Response:
        return _error_response(request, invalid_request(error.errors()))

    @app.exception_handler(HTTPException)
    async def on_http(request: Request, error: HTTPException) -> Response:
        kind = _ERROR_BY_STATUS.get(error.status_code, InvalidRequest)
        code = "method_not_allowed" if error.status_code == 405 else None
        message = f"{request.method} {request.url.path}: {error.detail}"
        return _error_response(request, kind(message, code=code), error.headers, error.status_code)

    @app.exception_handler(DBAPIError)
    async def on_database_error(request: Request, error: DBAPIError) -> Response:
        if not timed_out(error):
            raise error
        return _error_response(request, errors.TOO_SLOW)

    @app.exception_handler(Exception)
    async def on_unforeseen(request: Request, _: Exception) -> Response:
        return _error_response(request, errors.INTERNAL)  # uvicorn logs the exception


def _error_response(request: Request, error: PenstockError, headers: Any = None, status: int = 0) -> Response:
    """Return the response to a PenstockError, with `headers` added. `status`: 0 = that of the error."""
    usual, _, extra = errors.to_response(error)
    status, document = status or usual, errors.to_document(error)
    if anthropic.speaks(request.scope):
        status, document = anthropic.error_answer(request.scope, status, error)
    found = {name.decode(): value.decode() for name, value in extra}
    given = {name.lower(): value for name, value in dict(headers or {}).items()}
    return JSONResponse(document, status_code=status, headers={**found, **given})
