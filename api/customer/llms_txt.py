"""GET /llms.txt: what a program that writes programs must know of this API, in the form of llmstxt.org."""

from functools import cache

from fastapi import APIRouter, FastAPI
from fastapi.responses import PlainTextResponse

HEAD = """\
# Penstock

> An API to language models that is compatible with OpenAI's and Anthropic's, metered to the token. Any OpenAI SDK \
works: set its base URL to this host with /v1, and its key to one that begins with pen_live_. Any Anthropic SDK works, \
too: set its base URL to this host without /v1.

- Authenticate with the header `Authorization: Bearer pen_live_...` or `x-api-key: pen_live_...`. A pen_test_ key is \
free and answered without a model; its model names begin with test/.
- Errors have OpenAI's shape: error.message, error.type, error.param, error.code; those of /v1/messages Anthropic's. \
Do not repeat 400, 401, 402, 403 and \
404; wait for the header retry-after after 429 and 503.
- Every answer carries x-request-id. What it cost is `usage.cost`, in dollars.
- `status` of a model is active, deprecated (it still serves; `deprecation` says until when, and what to use \
instead) or offline (requests get 503 model_offline at once).

## Documentation

- [OpenAPI](/openapi.json): every route with its schema
- [Interactive documentation](/docs): the same to try out

## Routes
"""
METHODS = ("get", "post", "put", "patch", "delete")


def router(app: FastAPI) -> APIRouter:
    """The route; the routes of `app` are listed when it is first asked for."""
    routes = APIRouter(tags=["models"])

    @cache
    def text() -> str:
        lines = [
            f"- `{method.upper()} {path}`: {operations[method].get('summary', '')}"
            for path, operations in app.openapi()["paths"].items()
            for method in METHODS
            if method in operations and path.startswith("/v1/")
        ]
        return f"{HEAD}\n" + "\n".join(lines) + "\n"

    @routes.get(
        "/llms.txt", summary="This API in a few lines, for programs", response_class=PlainTextResponse
    )
    async def llms_txt() -> PlainTextResponse:
        """Markdown in the form of llmstxt.org; no key is needed."""
        return PlainTextResponse(text())

    return routes
