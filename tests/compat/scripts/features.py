"""What the scripts share: features as functions, run one after the other, one JSON line each.

Imported from the environments of the tools, so it knows the standard library only.
"""

import asyncio
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

BASE_URL = os.environ["COMPAT_BASE_URL"]
"""The platform's address with /v1."""
ROOT_URL = BASE_URL.removesuffix("/v1")
KEY = os.environ["COMPAT_KEY"]
MODEL = os.environ["COMPAT_MODEL"]
EMBEDDING_MODEL = os.environ["COMPAT_EMBEDDING_MODEL"]
TOKENIZER = os.environ["COMPAT_TOKENIZER"]
"""A folder with the tokenizer of both models: no hub of models is asked."""

COLOURS = {
    "type": "object",
    "properties": {
        "colour": {"type": "string", "enum": ["red", "green"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["colour", "count"],
    "additionalProperties": False,
}
"""A schema that random weights cannot fail to fill within some tokens."""

_features: list[tuple[str, Callable[[], Any]]] = []


def feature(name: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register a function, which may be async, as a feature; what it returns is the detail, an exception a failure."""

    def register(function: Callable[[], Any]) -> Callable[[], Any]:
        _features.append((name, function))
        return function

    return register


def run() -> None:
    """Run what is registered, all of it on one event loop, and print one JSON line for each."""
    with asyncio.Runner() as loop:
        for name, function in _features:
            try:
                detail = loop.run(function()) if inspect.iscoroutinefunction(function) else function()
                line = {"feature": name, "ok": True, "detail": str(detail or "")[:300]}
            except Exception as error:  # noqa: BLE001 - whatever a tool raises is its result
                line = {"feature": name, "ok": False, "detail": f"{type(error).__name__}: {error}"[:1000]}
            print(json.dumps(line), flush=True)


def is_colours(value: dict[str, Any]) -> None:
    """Check that an object keeps to `COLOURS`."""
    assert set(value) == {"colour", "count"}, value
    assert value["colour"] in ("red", "green"), value
    assert isinstance(value["count"], int), value


def are_vectors(vectors: list[list[float]], count: int) -> None:
    """Check that there are `count` embeddings of one length, and that no two are the same."""
    assert len(vectors) == count, len(vectors)
    assert len({len(vector) for vector in vectors}) == 1, [len(vector) for vector in vectors]
    assert len({tuple(vector) for vector in vectors}) == count, "two vectors are the same"


def command(*words: str, timeout_s: float = 180, excused: str = "", **env: str) -> str:
    """Run a command of the tool; returns what it printed.

    Raises:
        RuntimeError: it failed; unless it printed `excused`, where a failure is a matter of the model's random words.
    """
    done = subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, **env},
    )
    if done.returncode != 0 and not (excused and excused in done.stdout):
        text = f"{done.stdout[-400:]} {done.stderr[-500:]}"
        raise RuntimeError(f"{words[0]} ended with {done.returncode}: {text}")
    if done.stderr:
        print(done.stderr[-2000:], file=sys.stderr)
    return done.stdout
