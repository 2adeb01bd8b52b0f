"""Checks documents against Anthropic's published schemas (tests/data/anthropic)."""

import gzip
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from jsonschema import Draft202012Validator

_FILE = Path(__file__).resolve().parents[1] / "data" / "anthropic" / "messages.json.gz"


@cache
def _validator(name: str) -> Draft202012Validator:
    document = msgspec.json.decode(gzip.decompress(_FILE.read_bytes()))
    return Draft202012Validator({**document, "$ref": f"#/components/schemas/{name}"})


def check(name: str, document: Any) -> None:
    """Raise jsonschema.ValidationError unless the document conforms to the component `name`."""
    _validator(name).validate(document)


def events_of(stream: bytes) -> list[dict[str, Any]]:
    """The data of a stream's events, each of which names its type; those of messages conform to the schema."""
    found = []
    for event in stream.decode().split("\n\n"):
        if not event:
            continue
        first, second = event.split("\n")
        data = msgspec.json.decode(second.removeprefix("data: "))
        assert first == f"event: {data['type']}"
        if data["type"] == "error":
            check("ErrorResponse", data)
        elif data["type"] != "ping":
            check("MessageStreamEvent", data)
        found.append(data)
    return found
