"""Checks documents and events against the published schemas of the Responses API (tests/data/responses)."""

import gzip
import json
from pathlib import Path
from typing import Any

import jsonschema

DATA = Path(__file__).resolve().parents[1] / "data" / "responses"


def schemas(name: str) -> dict[str, Any]:
    with gzip.open(DATA / f"{name}.json.gz") as file:
        found: dict[str, Any] = json.load(file)
    return found


OPEN, OPENAI = schemas("openresponses"), schemas("openai")
OPENAI_EVENTS = {
    schema["properties"]["type"]["enum"][0]: name
    for name, schema in OPENAI["components"]["schemas"].items()
    if name.startswith("Response") and name.endswith("Event")
}
OPEN_EVENTS = {
    schema["properties"]["type"]["enum"][0]: name
    for name, schema in OPEN["components"]["schemas"].items()
    if name.endswith("StreamingEvent")
}


def check(document: Any, name: str, description: dict[str, Any]) -> None:
    """Validate against one schema of an API description."""
    jsonschema.Draft202012Validator({"$ref": f"#/components/schemas/{name}", **description}).validate(
        document
    )


def without_null_usage(response: dict[str, Any]) -> dict[str, Any]:
    """The response as OpenAI describes it: Open Responses wants `usage` null until the end, and OpenAI sends it so, but
    its description knows no null."""
    return {name: value for name, value in response.items() if name != "usage" or value is not None}


def validate(event: dict[str, Any]) -> None:
    """Validate an event against both official schemas. Open Responses knows no custom tools and names reasoning
    differently; OpenAI's error event has no member `error`, which is allowed."""
    kind, known = event["type"], event
    if response := event.get("response"):
        known = {**event, "response": without_null_usage(response)}
    check(known, OPENAI_EVENTS[kind], OPENAI)
    if kind in OPEN_EVENTS and "custom" not in json.dumps(event):
        check(event, OPEN_EVENTS[kind], OPEN)
