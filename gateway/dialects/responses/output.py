"""The output items of a response, and the stream's events that tell how they grow.

A whole answer is one large event: both forms come from here, so they cannot differ.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from gateway.dialects.chat_events import Choice, ToolCallDelta

Event = dict[str, Any]
"""An event of the stream, without its number."""


class OutputItem(Protocol):
    """An item that grows."""

    def document(self, status: str) -> dict[str, Any]:
        """Return the item as it is now."""

    def close(self, status: str) -> Iterator[Event]:
        """Return the events that end the item."""


class _Logprobs(msgspec.Struct, gc=False):
    content: list[msgspec.Raw] | None = None


_logprobs_decoder = msgspec.json.Decoder(_Logprobs | None)

_PREFIXES = {"reasoning": "rs", "message": "msg", "function_call": "fc", "custom_tool_call": "ctc"}
_TEXT = {
    "output_text": ("response.output_text", "text"),
    "refusal": ("response.refusal", "refusal"),
    "reasoning_text": ("response.reasoning_text", "text"),
}
"""By kind of part: the beginning of its events' names, and the member that has its text."""


def item_id(kind: str, request: str, index: int) -> str:
    """Return the id of an output item. `request`: the response's own part of its id, 32 hexadecimal digits.

    The id contains it, so that an item is found by its id alone.
    """
    return f"{_PREFIXES[kind]}_{request}{index:04x}"


class _Part:
    """A part of a text item."""

    def __init__(self, kind: str, *, logprobs: bool) -> None:
        self.kind = kind
        self.texts: list[str] = []
        self.logprobs: list[msgspec.Raw] | None = [] if logprobs else None

    def document(self) -> dict[str, Any]:
        text = "".join(self.texts)
        if self.kind != "output_text":
            return {"type": self.kind, _TEXT[self.kind][1]: text}
        return {"type": self.kind, "text": text, "annotations": [], "logprobs": self.logprobs or []}


class TextItem:
    """A message or reasoning: an item whose parts are texts."""

    def __init__(self, kind: str, request: str, index: int) -> None:
        self.kind = kind
        self.id = item_id(kind, request, index)
        self.index = index
        self._parts: list[_Part] = []

    def document(self, status: str) -> dict[str, Any]:
        """Return the item as it is now."""
        parts = [part.document() for part in self._parts]
        if self.kind == "reasoning":
            return {"id": self.id, "type": "reasoning", "summary": [], "content": parts, "status": status}
        return {"id": self.id, "type": "message", "role": "assistant", "status": status, "content": parts}

    def add(self, kind: str, text: str, logprobs: list[msgspec.Raw] | None) -> Iterator[Event]:
        """Add text to the part of this kind that is open, or begin one."""
        if not self._parts or self._parts[-1].kind != kind:
            yield from self._close_part()
            self._parts.append(_Part(kind, logprobs=kind == "output_text"))
            yield self._event("response.content_part.added", part=self._parts[-1].document())
        part = self._parts[-1]
        part.texts.append(text)
        event = self._event(f"{_TEXT[kind][0]}.delta", delta=text)
        if part.logprobs is not None:
            part.logprobs += logprobs or []
            event["logprobs"] = logprobs or []
        yield event

    def _close_part(self) -> Iterator[Event]:
        if not self._parts:
            return
        part = self._parts[-1].document()
        name, member = _TEXT[part["type"]]
        done = self._event(f"{name}.done", **{member: part[member]})
        if "logprobs" in part:
            done["logprobs"] = part["logprobs"]
        yield done
        yield self._event("response.content_part.done", part=part)

    def close(self, status: str) -> Iterator[Event]:
        """Return the events that end the item."""
        yield from self._close_part()
        yield _item_event("response.output_item.done", self.index, self.document(status))

    def _event(self, kind: str, **members: Any) -> Event:
        place = {
            "item_id": self.id,
            "output_index": self.index,
            "content_index": max(0, len(self._parts) - 1),
        }
        return {"type": kind, **place, **members}


class CallItem:
    """A call of a function or of a custom tool."""

    def __init__(
        self, request: str, index: int, call_id: str, name: str, namespace: str, *, custom: bool
    ) -> None:
        """`namespace`: the tool's; empty = it has none."""
        self.kind = "custom_tool_call" if custom else "function_call"
        self._member = "input" if custom else "arguments"
        self._events = "response.custom_tool_call_input" if custom else "response.function_call_arguments"
        self.id = item_id(self.kind, request, index)
        self.index = index
        self._head = {"id": self.id, "type": self.kind, "call_id": call_id, "name": name}
        if namespace:
            self._head["namespace"] = namespace
        self._texts: list[str] = []

    def document(self, status: str) -> dict[str, Any]:
        """Return the item as it is now."""
        return {**self._head, self._member: "".join(self._texts), "status": status}

    def add(self, text: str) -> Event:
        """Add to the arguments or the input."""
        self._texts.append(text)
        return {
            "type": f"{self._events}.delta",
            "item_id": self.id,
            "output_index": self.index,
            "delta": text,
        }

    def close(self, status: str) -> Iterator[Event]:
        """Return the events that end the item."""
        document = self.document(status)
        done = {"type": f"{self._events}.done", "item_id": self.id, "output_index": self.index}
        if self.kind == "function_call":
            done["name"] = document["name"]
        yield {**done, self._member: document[self._member]}
        yield _item_event("response.output_item.done", self.index, document)


def _item_event(kind: str, index: int, item: dict[str, Any]) -> Event:
    return {"type": kind, "output_index": index, "item": item}


class Output:
    """The items of one response in their order. An item ends when one of another kind begins; calls end together."""

    def __init__(self, request: str, namespaces: Mapping[str, Sequence[str]]) -> None:
        """`request`: see `item_id`. `namespaces`: namespace and own name of tools by the name that the model sees."""
        self._request = request
        self._namespaces = namespaces
        self._done: list[dict[str, Any]] = []
        self._text: TextItem | None = None
        """The open message or reasoning."""
        self._calls: dict[int, CallItem] = {}
        """The open calls by their index in the chat answer."""
        self._count = 0

    def add(self, choice: Choice) -> Iterator[Event]:
        """Add what an event, or a whole answer's message, brings."""
        for delta in (choice.delta, choice.message):
            if delta.reasoning_content:
                yield from self._add_text("reasoning", "reasoning_text", delta.reasoning_content, None)
            if delta.content:
                yield from self._add_text("message", "output_text", delta.content, _logprobs(choice))
            if delta.refusal:
                yield from self._add_text("message", "refusal", delta.refusal, None)
            for position, call in enumerate(delta.tool_calls or ()):
                whole = delta is choice.message
                yield from self._add_call(position if whole else call.index, call)

    def end(self, status: str) -> Iterator[Event]:
        """Return the events that end the open items, which end with `status`."""
        open_items: list[OutputItem] = [
            *([self._text] if self._text is not None else []),
            *self._calls.values(),
        ]
        self._text, self._calls = None, {}
        for number, item in enumerate(open_items, 1):
            ended = status if number == len(open_items) else "completed"
            self._done.append(item.document(ended))
            yield from item.close(ended)

    def documents(self) -> list[dict[str, Any]]:
        """Return all items that have ended so far; later ones do not join them."""
        return list(self._done)

    def _add_text(
        self, kind: str, part: str, text: str, logprobs: list[msgspec.Raw] | None
    ) -> Iterator[Event]:
        if self._text is None or self._text.kind != kind:
            yield from self.end("completed")
            self._text = TextItem(kind, self._request, self._next())
            yield _item_event(
                "response.output_item.added", self._text.index, self._text.document("in_progress")
            )
        yield from self._text.add(part, text, logprobs)

    def _add_call(self, index: int, delta: ToolCallDelta) -> Iterator[Event]:
        custom = delta.custom is not None
        name = (delta.custom.name if delta.custom else None) or (
            delta.function.name if delta.function else None
        )
        text = (delta.custom.input if delta.custom else None) or (
            delta.function.arguments if delta.function else None
        )
        call = self._calls.get(index)
        if call is None:
            if not name:
                return
            if self._text is not None:
                yield from self.end("completed")
            number = self._next()
            call_id = delta.id or f"call_{self._request}{number:04x}"
            namespace, own_name = self._namespaces.get(name, ("", name))
            call = CallItem(self._request, number, call_id, own_name, namespace, custom=custom)
            self._calls[index] = call
            yield _item_event("response.output_item.added", number, call.document("in_progress"))
        if text:
            yield call.add(text)

    def _next(self) -> int:
        self._count += 1
        return self._count - 1


def _logprobs(choice: Choice) -> list[msgspec.Raw] | None:
    found = _logprobs_decoder.decode(choice.logprobs)
    return found.content if found is not None else None
