"""/healthz says that the process lives, /readyz that it can admit and record work."""

from collections.abc import Callable

from fastapi import APIRouter
from fastapi.responses import JSONResponse


def router(checks: Callable[[], dict[str, bool]]) -> APIRouter:
    """Health endpoints; `checks` names each thing that admission needs and whether it is there."""
    routes = APIRouter(tags=["health"])

    @routes.get("/healthz", summary="The process lives")
    async def healthz() -> dict[str, str]:
        """Always 200 while the process can answer at all."""
        return {"status": "ok"}

    @routes.get("/readyz", summary="The process can admit and record work")
    async def readyz() -> JSONResponse:
        """200 when every check passes, else 503; the body names each check."""
        found = checks()
        ready = all(found.values())
        body = {"status": "ready" if ready else "not_ready", "checks": found}
        return JSONResponse(body, status_code=200 if ready else 503)

    return routes
