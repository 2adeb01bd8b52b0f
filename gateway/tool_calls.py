"""Writes the tool calls of an answer in the form that the request asked for.

Engines answer with calls of functions. A request with OpenAI's older `functions` gets `function_call`, and the call of
a custom tool has the text of its one argument as `input`. Where the input follows a grammar, the engine's text is the
input. Other answers are not touched.
"""

import json
import re
from typing import Any, Protocol
from uuid import uuid4

import msgspec

from gateway.schemas.common import CallForm
from gateway.schemas.messages import CUSTOM_INPUT

_PREFIX = re.compile(r"\s*\{\s*\"" + CUSTOM_INPUT + r"\"\s*:\s*\"")
"""The arguments of a custom tool up to its text."""
_MAX_PREFIX_CHARS = 64
"""Characters after which arguments without this beginning are passed on as they are."""
_WHOLE_CHARACTERS = re.compile(
    r"(?:[^\"\\]|\\[\"\\/bfnrt]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}"
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*"
)
"""Characters of a JSON string up to its end, or to an escape that has not arrived whole."""


def reshape_answer(answer: dict[str, Any], form: CallForm) -> None:
    """Change the tool calls of a whole answer."""
    if not form.changed:
        return
    for choice in answer["choices"]:
        message = choice.get("message")
        if message is not None and form.text_call:
            _call_with_text(choice, message, form.text_call)
            continue
        if message is None or not message.get("tool_calls"):
            continue
        calls = [_encoded(call) for call in message["tool_calls"]]
        if form.functions:
            message["function_call"] = calls[0]["function"]
            del message["tool_calls"]
            choice["finish_reason"] = _older_reason(choice["finish_reason"])
        else:
            message["tool_calls"] = [_custom_call(call, form) for call in calls]


def _call_with_text(choice: dict[str, Any], message: dict[str, Any], name: str) -> None:
    """Make the text of a message the input of a call."""
    text, message["content"] = message["content"], None
    if text:
        message["tool_calls"] = [_begun_call(name, text)]
        choice["finish_reason"] = _calling_reason(choice["finish_reason"])


def _begun_call(name: str, text: str) -> dict[str, Any]:
    return {"id": f"call_{uuid4().hex}", "type": "custom", "custom": {"name": name, "input": text}}


def _calling_reason(reason: str | None) -> str | None:
    return "tool_calls" if reason == "stop" else reason


def _custom_call(call: dict[str, Any], form: CallForm) -> dict[str, Any]:
    function = call["function"]
    if function["name"] not in form.custom:
        return call
    custom = {"name": function["name"], "input": _input_of(function["arguments"])}
    return {"id": call["id"], "type": "custom", "custom": custom}


def _input_of(arguments: str) -> str:
    """The text of a custom tool in its function's arguments, or these if they are not what the tool takes."""
    try:
        found = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return arguments
    text = found.get(CUSTOM_INPUT) if isinstance(found, dict) else None
    return text if isinstance(text, str) else arguments


def _encoded(call: Any) -> dict[str, Any]:
    return call if isinstance(call, dict) else msgspec.to_builtins(call)


def _older_reason(reason: str | None) -> str | None:
    return "function_call" if reason == "tool_calls" else reason


class InputReader:
    """Reads the text of a custom tool from the arguments of its function while they arrive."""

    __slots__ = ("_began", "_rest")

    def __init__(self) -> None:
        self._rest = ""
        self._began = False

    def read(self, arguments: str) -> str:
        """Return the text that a further piece of the arguments brings."""
        self._rest += arguments
        if not self._began:
            prefix = _PREFIX.match(self._rest)
            if prefix is None:
                if len(self._rest) <= _MAX_PREFIX_CHARS:
                    return ""
                text, self._rest = self._rest, ""  # not what the tool takes: the customer sees it as it is
                return text
            self._rest = self._rest[prefix.end() :]
            self._began = True
        whole = _WHOLE_CHARACTERS.match(self._rest)
        if whole is None or not whole.group():
            return ""
        self._rest = self._rest[whole.end() :]
        found: str = json.loads(f'"{whole.group()}"', strict=False)
        return found.encode("utf-8", "replace").decode()


class Choice(Protocol):
    """A choice of an event, with its members as JSON."""

    index: msgspec.Raw | msgspec.UnsetType
    delta: msgspec.Raw | msgspec.UnsetType
    finish_reason: msgspec.Raw | msgspec.UnsetType


class CallStream:
    """Changes the deltas of one stream. Keeps the readers of the custom tools that are being called."""

    __slots__ = ("_begun", "_form", "_readers")

    def __init__(self, form: CallForm) -> None:
        self._form = form
        self._readers: dict[tuple[int, int], InputReader] = {}
        self._begun: set[int] = set()
        """Choices whose text has begun a call."""

    def apply(self, choice: Choice) -> None:
        """Change the tool calls and the finish reason of one choice of an event."""
        if self._form.text_call:
            self._call_with_text(choice)
            return
        if choice.delta is not msgspec.UNSET and b'"tool_calls"' in bytes(choice.delta):
            index = 0 if choice.index is msgspec.UNSET else msgspec.json.decode(choice.index, type=int)
            delta = msgspec.json.decode(choice.delta, type=dict[str, Any])
            choice.delta = msgspec.Raw(msgspec.json.encode(self._reshape(index, delta)))
        if choice.finish_reason is not msgspec.UNSET and self._form.functions:
            reason = msgspec.json.decode(choice.finish_reason, type=str | None)
            choice.finish_reason = msgspec.Raw(msgspec.json.encode(_older_reason(reason)))

    def _call_with_text(self, choice: Choice) -> None:
        """Make the text of an event a part of a call's input."""
        index = 0 if choice.index is msgspec.UNSET else msgspec.json.decode(choice.index, type=int)
        if choice.delta is not msgspec.UNSET:
            delta = msgspec.json.decode(choice.delta, type=dict[str, Any])
            if text := delta.pop("content", None):
                part = {"custom": {"input": text}}
                if index not in self._begun:
                    self._begun.add(index)
                    part = _begun_call(self._form.text_call, text)
                delta["tool_calls"] = [{"index": 0, **part}]
            choice.delta = msgspec.Raw(msgspec.json.encode(delta))
        if choice.finish_reason is not msgspec.UNSET and index in self._begun:
            reason = msgspec.json.decode(choice.finish_reason, type=str | None)
            choice.finish_reason = msgspec.Raw(msgspec.json.encode(_calling_reason(reason)))

    def _reshape(self, index: int, delta: dict[str, Any]) -> dict[str, Any]:
        """Return the delta of the choice `index` in the form that was asked for."""
        calls = delta.get("tool_calls")
        if not calls:
            return delta
        if self._form.functions:
            rest = {name: value for name, value in delta.items() if name != "tool_calls"}
            first = [call for call in calls if call.get("index", 0) == 0]
            return {**rest, "function_call": _merged(first)} if first else rest
        return {**delta, "tool_calls": [self._custom(index, call) for call in calls]}

    def _custom(self, index: int, call: dict[str, Any]) -> dict[str, Any]:
        function = call.get("function") or {}
        place = (index, call.get("index", 0))
        if function.get("name") in self._form.custom:
            self._readers[place] = InputReader()
        reader = self._readers.get(place)
        if reader is None:
            return call
        custom: dict[str, Any] = {"input": reader.read(function.get("arguments") or "")}
        if function.get("name"):
            custom["name"] = function["name"]
        rest = {name: value for name, value in call.items() if name != "function"}
        return {**rest, **({"type": "custom"} if "type" in call else {}), "custom": custom}


def _merged(calls: list[dict[str, Any]]) -> dict[str, str]:
    """The pieces of one call as one piece."""
    functions = [call.get("function") or {} for call in calls]
    merged = {"arguments": "".join(function.get("arguments") or "" for function in functions)}
    name = next((function["name"] for function in functions if function.get("name")), None)
    return merged if name is None else {"name": name, **merged}
