"""Anthropic's routes in the OpenAPI document: what they answer. Their requests are those that are decoded."""

from typing import Any

_INTEGER, _STRING = {"type": "integer"}, {"type": "string"}
ERROR = {
    "type": "object",
    "required": ["type", "error", "request_id"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {
                "type": _STRING,
                "message": _STRING,
                "code": _STRING,
                "param": _STRING,
                "details": {"type": "object"},
            },
        },
        "request_id": {"type": ["string", "null"]},
    },
}
MESSAGE = {
    "type": "object",
    "required": ["id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"],
    "properties": {
        "id": _STRING,
        "type": {"const": "message"},
        "role": {"const": "assistant"},
        "model": _STRING,
        "content": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["type"],
                "properties": {"type": {"enum": ["text", "thinking", "tool_use"]}},
            },
        },
        "stop_reason": {"type": ["string", "null"]},
        "stop_sequence": {"type": ["string", "null"]},
        "usage": {
            "type": "object",
            "required": ["input_tokens", "output_tokens"],
            "properties": {
                "input_tokens": _INTEGER,
                "cache_creation_input_tokens": _INTEGER,
                "cache_read_input_tokens": _INTEGER,
                "output_tokens": _INTEGER,
            },
        },
    },
}
COUNT = {"type": "object", "required": ["input_tokens"], "properties": {"input_tokens": _INTEGER}}


def operations(refusals: dict[str, str], ref: str) -> dict[str, dict[str, Any]]:
    """Return the operations by path. `refusals`: meaning by status in OpenAI's form. `ref`: of a schema by `name`."""
    return {
        "/v1/messages": _operation(
            "Message", "MessagesRequest", "MessagesAnswer", refusals, ref, streamed=True
        ),
        "/v1/messages/count_tokens": _operation(
            "Tokens of a message's prompt", "CountRequest", "CountAnswer", refusals, ref, streamed=False
        ),
    }


def _operation(
    title: str, request: str, answer: str, refusals: dict[str, str], ref: str, *, streamed: bool
) -> dict[str, Any]:
    def content(name: str) -> dict[str, Any]:
        return {"application/json": {"schema": {"$ref": ref.format(name=name)}}}

    told = {**refusals, "529": "There is no capacity now; see `retry-after`."}
    stream = {"text/event-stream": {"schema": _STRING}} if streamed else {}
    about = "Anthropic's request and response" + (
        "; server-sent events with `stream: true`." if streamed else "."
    )
    return {
        "tags": ["inference"],
        "summary": title,
        "description": about,
        "security": [{"ApiKey": []}],
        "requestBody": {"required": True, "content": content(request)},
        "responses": {
            "200": {"description": "The answer.", "content": {**content(answer), **stream}},
            **{
                status: {"description": text, "content": content("MessagesError")}
                for status, text in told.items()
            },
        },
    }
