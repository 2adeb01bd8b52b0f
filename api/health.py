"""/healthz answers while the process runs, /readyz and /health while it can admit and record requests."""

from collections.abc import Callable

from fastapi import APIRouter
from fastapi.responses import JSONResponse


def router(checks: Callable[[], dict[str, bool]]) -> APIRouter:
    """The health endpoints. `checks` returns for each service that admission needs whether it is available."""
    routes = APIRouter(tags=["health"])

    @routes.get("/healthz", summary="The process runs")
    async def healthz() -> dict[str, str]:
        """Status 200 while the process runs."""
        return {"status": "ok"}

    @routes.head("/health", include_in_schema=False)
    @routes.get("/health", summary="/readyz, by the name that load tools ask for", operation_id="health")
    @routes.get("/readyz", summary="The process can admit and record requests")
    async def readyz() -> JSONResponse:
        """Status 200 when every check passes, else 503. The body contains each check."""
        found = checks()
        ready = all(found.values())
        body = {"status": "ready" if ready else "not_ready", "checks": found}
        return JSONResponse(body, status_code=200 if ready else 503)

    return routes
