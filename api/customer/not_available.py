"""Parts of OpenAI's API that there are none of here: 404 with the routes that exist, for any method, without a key."""

from collections.abc import Awaitable, Callable, Iterable

from fastapi import APIRouter

from core.errors import NotFound

PARTS = (
    "assistants", "audio", "batches", "containers", "conversations", "evals", "files", "fine_tuning", "images",
    "moderations", "realtime", "threads", "uploads", "vector_stores", "videos",
)  # fmt: skip
"""First parts of their paths below /v1."""
ROUTES = ("messages/batches", "chat/completions/{id}", "responses/compact")
"""Further paths below /v1, beside routes that there are: what is stored of chat completions, for one."""
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD")


def router(inference: Iterable[str]) -> APIRouter:
    """The routes. `inference`: the paths that answer POST with a model's work."""
    routes = APIRouter(include_in_schema=False)
    known = [*(f"POST {path}" for path in sorted(inference)), "GET /v1/models"]

    for part in (*PARTS, *ROUTES):
        for path in (f"/v1/{part}", f"/v1/{part}/{{rest:path}}"):
            routes.add_api_route(path, _refusal(part, known), methods=list(METHODS))
    return routes


def _refusal(part: str, known: list[str]) -> Callable[[], Awaitable[None]]:
    async def refuse() -> None:
        raise NotFound(
            f"/v1/{part} is not available on this platform. It serves: {', '.join(known)}. GET /llms.txt lists every "
            "route.",
            code="not_available",
            details={"routes": known},
        )

    return refuse
