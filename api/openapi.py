"""The OpenAPI documents: /openapi.json for customers, /admin/v1/openapi.json for the platform's own people.

The schemas of inference requests are those that the requests are decoded by (gateway/schemas), so they cannot differ
from what is accepted.
"""

from collections.abc import Collection
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse

from api import openapi_messages, openapi_refusals, openapi_tokens
from gateway.dialects.messages.request import CountRequest, MessagesRequest
from gateway.dialects.responses.request import ResponsesRequest
from gateway.schemas.chat import ChatRequest
from gateway.schemas.completions import CompletionRequest
from gateway.schemas.embeddings import EmbeddingsRequest

_ADMIN = "/admin/"
_NOT_CUSTOMERS = (_ADMIN, "/webhooks/")
_REF = "#/components/schemas/{name}"
_INFERENCE = (
    ("/v1/chat/completions", "Chat completion", ChatRequest, "chat.completion", "message"),
    ("/v1/completions", "Text completion", CompletionRequest, "text_completion", "text"),
)
_EMBEDDINGS = ("/v1/embeddings", "Embeddings of texts", EmbeddingsRequest)
_INTEGER, _STRING = {"type": "integer"}, {"type": "string"}
_USAGE = {
    "type": "object",
    "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
    "properties": {
        "prompt_tokens": _INTEGER,
        "completion_tokens": _INTEGER,
        "total_tokens": _INTEGER,
        "prompt_tokens_details": {"type": "object", "properties": {"cached_tokens": _INTEGER}},
        "completion_tokens_details": {"type": "object", "properties": {"reasoning_tokens": _INTEGER}},
    },
}
_MESSAGE = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"const": "assistant"},
        "content": {"type": ["string", "null"]},
        "reasoning_content": _STRING,
        "refusal": {"type": ["string", "null"]},
        "tool_calls": {"type": "array", "items": {"type": "object"}},
    },
}
_EMBEDDINGS_ANSWER = {
    "type": "object",
    "required": ["object", "data", "model", "usage"],
    "properties": {
        "object": {"const": "list"},
        "data": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["object", "index", "embedding"],
                "properties": {
                    "object": {"const": "embedding"},
                    "index": _INTEGER,
                    "embedding": {"anyOf": [{"type": "array", "items": {"type": "number"}}, _STRING]},
                },
            },
        },
        "model": _STRING,
        "usage": {
            "type": "object",
            "required": ["prompt_tokens", "total_tokens"],
            "properties": {"prompt_tokens": _INTEGER, "total_tokens": _INTEGER},
        },
    },
}


_INPUT_TOKENS: dict[str, Any] = {
    "type": "object",
    "required": ["object", "input_tokens"],
    "properties": {"object": {"const": "response.input_tokens"}, "input_tokens": _INTEGER},
}
_RESPONSE = {
    "type": "object",
    "required": ["id", "object", "created_at", "status", "model", "output", "usage"],
    "properties": {
        "id": _STRING,
        "object": {"const": "response"},
        "created_at": _INTEGER,
        "completed_at": {"type": ["integer", "null"]},
        "status": {"enum": ["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]},
        "incomplete_details": {"type": ["object", "null"]},
        "error": {"type": ["object", "null"]},
        "model": _STRING,
        "output": {"type": "array", "items": {"type": "object"}},
        "usage": {
            "type": ["object", "null"],
            "properties": {
                "input_tokens": _INTEGER,
                "input_tokens_details": {"type": "object", "properties": {"cached_tokens": _INTEGER}},
                "output_tokens": _INTEGER,
                "output_tokens_details": {"type": "object", "properties": {"reasoning_tokens": _INTEGER}},
                "total_tokens": _INTEGER,
            },
        },
    },
}


def install(app: FastAPI) -> None:
    """Serve both documents and their pages; FastAPI serves the customers' one by itself."""
    documents: dict[bool, dict[str, Any]] = {}

    def document(admin: bool) -> dict[str, Any]:
        if admin not in documents:
            documents[admin] = _document(app, admin=admin)
        return documents[admin]

    @app.get("/admin/v1/openapi.json", include_in_schema=False)
    async def admin_document() -> dict[str, Any]:
        return document(admin=True)

    @app.get("/admin/docs", include_in_schema=False)
    async def admin_page() -> HTMLResponse:
        return get_swagger_ui_html(openapi_url="/admin/v1/openapi.json", title=f"{app.title} administration")

    app.openapi = lambda: document(admin=False)  # type: ignore[method-assign] # FastAPI's documented way


def _document(app: FastAPI, *, admin: bool) -> dict[str, Any]:
    """The document of the routes under /admin, or of those for customers, with the schemas that they use."""
    title = f"{app.title} administration" if admin else app.title
    found = get_openapi(title=title, version=app.version, summary=app.summary, routes=app.routes)
    paths = found["paths"]
    found["paths"] = {
        path: paths[path]
        for path in paths
        if path.startswith(_ADMIN if admin else "/") and (admin or not path.startswith(_NOT_CUSTOMERS))
    }
    schemas = found.get("components", {}).get("schemas", {})
    used = _used(found["paths"], schemas)
    for name in schemas.keys() - used:
        del schemas[name]
    openapi_refusals.add(found)
    if not admin:
        _add_inference(found)
    return found


def _used(document: object, schemas: dict[str, Any]) -> set[str]:
    """Names of the schemas that a part of a document refers to, also through others."""
    found: set[str] = set()
    parts: list[object] = [document]
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            name = str(part.get("$ref", "")).removeprefix(_REF.format(name=""))
            if name in schemas and name not in found:
                found.add(name)
                parts.append(schemas[name])
            parts.extend(part.values())
        elif isinstance(part, list):
            parts.extend(part)
    return found


def _add_inference(document: dict[str, Any]) -> None:
    """Add the inference routes, which bypass FastAPI."""
    tokens = [row[2] for row in openapi_tokens.ROUTES]
    requests = [*(row[2] for row in _INFERENCE), EmbeddingsRequest, MessagesRequest, CountRequest, *tokens]
    _, components = msgspec.json.schema_components(requests, ref_template=_REF)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(components)
    document["components"].setdefault("securitySchemes", {})[openapi_refusals.KEY] = {
        "type": "http",
        "scheme": "bearer",
    }
    schemas["InferenceUsage"] = _USAGE
    _add_responses(document, schemas)
    for path, title, request, kind, content in _INFERENCE:
        answer = f"{request.__name__.removesuffix('Request')}Answer"
        schemas[answer] = _answer(kind, content)
        document["paths"][path] = {"post": _operation(title, request.__name__, answer)}
    path, title, asked = _EMBEDDINGS
    schemas["EmbeddingsAnswer"] = _EMBEDDINGS_ANSWER
    document["paths"][path] = {"post": _operation(title, asked.__name__, "EmbeddingsAnswer", streams=False)}
    schemas |= openapi_tokens.ANSWERS
    for path, title, shape, answer in openapi_tokens.ROUTES:
        operation = _operation(title, shape.__name__, answer, api="vLLM", streams=False)
        document["paths"][path] = {"post": operation}
    schemas |= {
        "MessagesAnswer": openapi_messages.MESSAGE,
        "CountAnswer": openapi_messages.COUNT,
        "MessagesError": openapi_messages.ERROR,
    }
    for path, operation in openapi_messages.operations(openapi_refusals.INFERENCE, _REF).items():
        document["paths"][path] = {"post": operation}


def _add_responses(document: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Add POST /v1/responses and its count of tokens. What is taken undecoded may be anything in the schema."""
    _, components = msgspec.json.schema_components([ResponsesRequest], ref_template=_REF)
    name = ResponsesRequest.__name__
    fields = components.pop(name)
    schemas.update({f"Responses{key}": value for key, value in components.items()})
    schemas[name] = _with_prefix(fields, components.keys())
    for key in components:
        schemas[f"Responses{key}"] = _with_prefix(schemas[f"Responses{key}"], components.keys())
    schemas["Response"] = _RESPONSE
    schemas["InputTokens"] = _INPUT_TOKENS
    document["paths"]["/v1/responses"] = {"post": _operation("Response", name, "Response")}
    document["paths"]["/v1/responses/input_tokens"] = {
        "post": _operation("Tokens of a response's prompt, which are not billed", name, "InputTokens")
    }


def _with_prefix(schema: Any, names: Collection[str]) -> Any:
    """A schema whose references to `names` have the prefix of this API: chat has schemas of the same names."""
    if isinstance(schema, str):
        name = schema.removeprefix(_REF.format(name=""))
        return _REF.format(name=f"Responses{name}") if name != schema and name in names else schema
    if isinstance(schema, dict):
        return {key: _with_prefix(value, names) for key, value in schema.items()}
    return [_with_prefix(each, names) for each in schema] if isinstance(schema, list) else schema


def _answer(kind: str, content: str) -> dict[str, Any]:
    choice = {
        "type": "object",
        "required": ["index", "finish_reason", content],
        "properties": {
            "index": _INTEGER,
            content: _MESSAGE if content == "message" else _STRING,
            "logprobs": {"type": ["object", "null"]},
            "finish_reason": {"enum": ["stop", "length", "tool_calls", "function_call", "content_filter"]},
        },
    }
    return {
        "type": "object",
        "required": ["id", "object", "created", "model", "choices", "usage"],
        "properties": {
            "id": _STRING,
            "object": {"const": kind},
            "created": _INTEGER,
            "model": _STRING,
            "choices": {"type": "array", "items": choice},
            "usage": {"$ref": _REF.format(name="InferenceUsage")},
        },
    }


def _operation(
    title: str, request: str, answer: str, *, api: str = "OpenAI", streams: bool = True
) -> dict[str, Any]:
    """A route of inference; `api`: whose requests and responses it has."""

    def content(name: str) -> dict[str, Any]:
        return {"application/json": {"schema": {"$ref": _REF.format(name=name)}}}

    refusals = {
        status: {"description": text, "content": content(openapi_refusals.ERROR_SCHEMA)}
        for status, text in openapi_refusals.INFERENCE.items()
    }
    events = {"text/event-stream": {"schema": _STRING}} if streams else {}
    stream = "; server-sent events with `stream: true`" if streams else ""
    return {
        "tags": ["inference"],
        "summary": title,
        "description": f"{api}'s request and response{stream}.",
        "security": [{openapi_refusals.KEY: []}],
        "requestBody": {"required": True, "content": content(request)},
        "responses": {
            "200": {
                "description": f"The answer{', or a stream of its events' * streams}.",
                "content": content(answer) | events,
            },
            **refusals,
        },
    }
