"""Merges the chunks of a stream into the answer of a request that is not streamed.

Engines are always asked for a stream (gateway/relay.py explains why). All chunks are decoded in one pass at the end,
which takes about a microsecond per chunk.
"""

from typing import Any

import msgspec

from core.errors import EngineFailed

_chunk_list_decoder = msgspec.json.Decoder(list[dict[str, Any]])


def merge_chunks(events: bytes, endpoint: str) -> dict[str, Any]:
    """Return the answer of `endpoint` (chat or text), without its usage, from whole events with `data: ` lines.

    Raises EngineFailed when `events` hold no chunk.
    """
    payloads = [event[6:] for event in events.split(b"\n\n") if event]
    chunks = _chunk_list_decoder.decode(b"[" + b",".join(payloads) + b"]")
    if not chunks:
        raise EngineFailed("The engine ended its answer without sending anything.")
    choices: dict[int, _Choice] = {}
    for chunk in chunks:
        for part in chunk.get("choices", ()):
            index = part.get("index", 0)
            choice = choices.get(index)
            if choice is None:
                choice = choices[index] = _Choice(index)
            choice.add(part)
    head = chunks[0]
    answer = {
        "id": head.get("id"),
        "object": "chat.completion" if endpoint == "chat" else "text_completion",
        "created": head.get("created"),
        "model": head.get("model"),
    }
    if head.get("system_fingerprint") is not None:
        answer["system_fingerprint"] = head["system_fingerprint"]
    ordered = [choices[index] for index in sorted(choices)]
    answer["choices"] = [choice.chat() if endpoint == "chat" else choice.text_choice() for choice in ordered]
    return answer


class _Choice:
    """One choice while its deltas are merged."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.role = "assistant"
        self.texts: dict[str, list[str]] = {}
        self.calls: dict[int, dict[str, Any]] = {}
        self.logprobs: dict[str, list[Any]] = {}
        self.ends: dict[str, Any] = {"finish_reason": None}

    def add(self, part: dict[str, Any]) -> None:
        """Merge this choice's part of one chunk."""
        delta = part.get("delta")
        if delta is None:
            delta = {"content": part.get("text")}
        for name, value in delta.items():
            if name == "tool_calls":
                for call in value or ():
                    self._add_call(call)
            elif name == "role":
                self.role = value or self.role
            elif isinstance(value, str):
                self.texts.setdefault(name, []).append(value)
        for name, values in (part.get("logprobs") or {}).items():
            if isinstance(values, list):
                self.logprobs.setdefault(name, []).extend(values)
        for name in ("finish_reason", "stop_reason"):
            if part.get(name) is not None:
                self.ends[name] = part[name]

    def _add_call(self, delta: dict[str, Any]) -> None:
        """Merge a delta of a tool call: its id, type and name arrive once, its arguments in pieces."""
        call = self.calls.setdefault(
            delta.get("index", 0), {"id": None, "type": "function", "function": {"name": "", "arguments": ""}}
        )
        call["id"] = call["id"] or delta.get("id")
        function = delta.get("function") or {}
        call["function"]["name"] = call["function"]["name"] or function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""

    def chat(self) -> dict[str, Any]:
        """Return the choice of a chat completion."""
        message: dict[str, Any] = {"role": self.role}
        for name, pieces in self.texts.items():
            message[name] = "".join(pieces)
        calls = [self.calls[index] for index in sorted(self.calls)]
        if calls:
            message["tool_calls"] = calls
        content = message.get("content")
        message["content"] = content if content or not calls else None
        message.setdefault("refusal", None)
        return {"index": self.index, "message": message, "logprobs": self.logprobs or None, **self.ends}

    def text_choice(self) -> dict[str, Any]:
        """Return the choice of a text completion."""
        text = "".join(self.texts.get("content", ()))
        return {"index": self.index, "text": text, "logprobs": self.logprobs or None, **self.ends}
