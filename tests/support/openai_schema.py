"""Checks chat and text completions, whole and streamed, against OpenAI's published schemas (tests/data/openai).

The description differs from what OpenAI sends in two places, which are mended here: events of custom tools' calls have
the type `custom`, as the calls of whole answers do, and a text completion's stream has `finish_reason` null until a
choice ends, for which the description uses the schema of whole answers.
"""

import gzip
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from jsonschema import Draft202012Validator

_FILE = Path(__file__).resolve().parents[1] / "data" / "openai" / "served.json.gz"
WHOLE = {"chat": "CreateChatCompletionResponse", "text": "CreateCompletionResponse"}
STREAMED = {"chat": "CreateChatCompletionStreamResponse", "text": "StreamedCompletion"}


def modern(schema: Any) -> Any:
    """Return a schema in which OpenAPI 3.0's `nullable: true` is written as JSON Schema 2020-12 knows it."""
    if isinstance(schema, list):
        return [modern(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    rest = {name: modern(value) for name, value in schema.items() if name != "nullable"}
    return {"anyOf": [rest, {"type": "null"}]} if schema.get("nullable") is True else rest


@cache
def _components() -> dict[str, Any]:
    document = msgspec.json.decode(gzip.decompress(_FILE.read_bytes()))
    found: dict[str, Any] = modern(document["components"]["schemas"])
    found["ChatCompletionMessageToolCallChunk"]["properties"]["type"]["enum"].append("custom")
    streamed = msgspec.json.decode(msgspec.json.encode(found[WHOLE["text"]]))
    reason = streamed["properties"]["choices"]["items"]["properties"]["finish_reason"]
    reason["enum"].append(None)
    del reason["type"]
    found[STREAMED["text"]] = streamed
    return found


@cache
def _validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(
        {"$ref": f"#/components/schemas/{name}", "components": {"schemas": _components()}}
    )


def check(document: Any, endpoint: str, *, streamed: bool = False) -> None:
    """Raise jsonschema.ValidationError unless an answer, or an event of one, conforms. `endpoint`: chat or text."""
    _validator((STREAMED if streamed else WHOLE)[endpoint]).validate(document)


def events_of(lines: Iterable[str], endpoint: str) -> list[dict[str, Any]]:
    """Return the events of a stream that did not fail, without [DONE]. Each conforms to the schema."""
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    events = [msgspec.json.decode(each) for each in data[:-1]]
    assert events
    for event in events:
        check(event, endpoint, streamed=True)
    return events
