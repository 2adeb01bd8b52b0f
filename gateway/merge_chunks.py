"""Merges the events of a stream into the answer of a request that is not streamed, each event as it arrives.

Only what the answer will contain is kept: pieces of text, and logprobs as the engine's own JSON.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from core.errors import EngineFailed
from gateway.limits import MAX_ANSWER_BYTES, AnswerTooLarge
from gateway.schemas.common import Extras

REASONING_NAMES = (("reasoning", "reasoning_content"), ("reasoning_content", "reasoning"))
"""The two names of reasoning, each with the other: customers get both."""
_CALL_BYTES = 64
"""Bytes kept for a delta of a tool call beside its arguments."""
PART_BYTES = 64
"""Bytes that a part of an answer takes beside its text: a string's header and its place in a list."""


class _Part(msgspec.Struct, gc=False):
    """One choice's part of an event, of a chat or a text completion."""

    index: int = 0
    delta: dict[str, Any] | None = None
    text: str | None = None
    logprobs: dict[str, msgspec.Raw] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_token_ids: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    token_ids: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Event(msgspec.Struct, gc=False):
    """The members of an event that an answer contains."""

    id: str | None = None
    created: int | None = None
    model: str | None = None
    system_fingerprint: str | None = None
    prompt_token_ids: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    choices: list[_Part] = []


_event_decoder = msgspec.json.Decoder(_Event)


class AnswerMerger:
    """The answer of one attempt while its events arrive.

    `endpoint` is chat or text; `extras` are those that the request asks for.
    """

    __slots__ = ("_choices", "_endpoint", "_extras", "_first", "_limit", "size")

    def __init__(self, endpoint: str, extras: Extras) -> None:
        self._endpoint = endpoint
        self._extras = extras
        self._first: _Event | None = None
        self._choices: dict[int, _Choice] = {}
        self._limit = MAX_ANSWER_BYTES
        self.size = 0
        """Bytes of text and logprobs kept so far, with PART_BYTES for each part."""

    def end_early(self) -> None:
        """Keep no more than what has arrived: the next event raises AnswerTooLarge."""
        self._limit = 0

    def add(self, events: bytes) -> None:
        """Merge whole events with `data: ` lines.

        Raises AnswerTooLarge, after these, when more than MAX_ANSWER_BYTES are kept or the answer has to end early, and
        ValueError, TypeError or
        AttributeError when an event does not have OpenAI's shape.
        """
        for line in events.split(b"\n\n"):
            if not line:
                continue
            event = _event_decoder.decode(line[6:])
            if self._first is None:
                self._first = event
                if not self._extras.token_ids:
                    event.prompt_token_ids = (
                        msgspec.UNSET
                    )  # which would keep the bytes of its event in memory
                self.size += len(inner_of(event.prompt_token_ids))
            for part in event.choices:
                choice = self._choices.get(part.index)
                if choice is None:
                    choice = self._choices[part.index] = _Choice(part.index, self._extras)
                self.size += choice.add(part) + PART_BYTES
        if self.size > self._limit:
            raise AnswerTooLarge("The answer takes more memory than it may.")

    def answer(self, missing: Iterable[int] = ()) -> dict[str, Any]:
        """Return the answer without its usage. Raises EngineFailed when no event has arrived.

        `missing`: indices of choices that are part of the answer even if none of their events has arrived.
        """
        if self._first is None:
            raise EngineFailed("The engine ended its answer without sending anything.")
        for index in missing:
            self._choices.setdefault(index, _Choice(index, self._extras))
        chat = self._endpoint == "chat"
        ordered = [self._choices[index] for index in sorted(self._choices)]
        return answer_object(
            self._endpoint,
            self._first.id,
            self._first.created,
            self._first.model,
            self._first.system_fingerprint,
            [choice.chat() if chat else choice.text_choice() for choice in ordered],
            self._first.prompt_token_ids if self._extras.token_ids else msgspec.UNSET,
        )


def inner_of(value: msgspec.Raw | msgspec.UnsetType) -> bytes:
    """Return the entries of a JSON array without its brackets, as a copy; nothing for null."""
    text = b"" if value is msgspec.UNSET else bytes(value).strip()
    return text[1:-1].strip() if text[:1] == b"[" else b""


def as_list(pieces: list[bytes]) -> msgspec.Raw:
    """Return the JSON array of entries, of which each piece has some."""
    return msgspec.Raw(b"[" + b",".join(pieces) + b"]")


def answer_object(
    endpoint: str,
    answer_id: str | None,
    created: int | None,
    model: str | None,
    fingerprint: str | None,
    choices: list[dict[str, Any]],
    prompt_token_ids: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET,
) -> dict[str, Any]:
    """Return an answer of `endpoint` (chat or text) without its usage.

    `prompt_token_ids`: of a chat, where they were asked for; a text completion has them in its choices.
    """
    answer: dict[str, Any] = {
        "id": answer_id,
        "object": "chat.completion" if endpoint == "chat" else "text_completion",
        "created": created,
        "model": model,
    }
    if fingerprint is not None:
        answer["system_fingerprint"] = fingerprint
    answer["choices"] = choices
    if ids := inner_of(prompt_token_ids):
        answer["prompt_token_ids"] = as_list([ids])
    return answer


def chat_choice(
    index: int,
    members: dict[str, Any],
    calls: list[Any],
    logprobs: dict[str, Any] | None,
    ends: dict[str, Any],
) -> dict[str, Any]:
    """Return one choice of a chat completion.

    `members`: role and texts of the message; `calls`: its tool calls; `ends`: finish and stop reason. Engines give
    log-probabilities of the content only; OpenAI's have those of a refusal beside them.
    """
    message = {"role": "assistant", **members}
    if calls:
        message["tool_calls"] = calls
    content = message.get("content")
    message["content"] = content if content or not calls else None
    message.setdefault("refusal", None)
    for name, other in REASONING_NAMES:
        if message.get(name):
            message.setdefault(other, message[name])
    whole_logprobs = {**logprobs, "refusal": None} if logprobs else None
    return {"index": index, "message": message, "logprobs": whole_logprobs, **ends}


class _Choice:
    """One choice while its deltas are merged."""

    __slots__ = ("calls", "ends", "extras", "index", "logprobs", "role", "texts", "token_ids")

    def __init__(self, index: int, extras: Extras) -> None:
        self.index = index
        self.extras = extras
        self.role = "assistant"
        self.texts: dict[str, list[str]] = {}
        self.calls: dict[int, _Call] = {}
        self.logprobs: dict[str, list[bytes]] = {}
        self.token_ids: list[bytes] = []
        self.ends: dict[str, Any] = {"finish_reason": None}

    def add(self, part: _Part) -> int:
        """Merge this choice's part of one event; returns the bytes that are kept of it."""
        kept = 0
        delta: dict[str, Any] = part.delta if part.delta is not None else {"content": part.text}
        for name, value in delta.items():
            if name == "tool_calls":
                for call in value or ():
                    kept += self._add_call(call)
            elif name == "role":
                self.role = value or self.role
            elif isinstance(value, str):
                self.texts.setdefault(name, []).append(value)
                kept += len(value)
        for name, values in ((part.logprobs if self.extras.logprobs else None) or {}).items():
            inner = bytes(values).strip()
            if inner[:1] == b"[" and (inner := inner[1:-1].strip()):
                self.logprobs.setdefault(name, []).append(inner)
                kept += len(inner)
            elif inner == b"":
                self.logprobs.setdefault(name, [])
        if self.extras.token_ids:
            kept += self._add_ids(part)
        if part.finish_reason is not None:
            self.ends["finish_reason"] = part.finish_reason
        if part.stop_reason is not None and self.extras.stop_reason:
            self.ends["stop_reason"] = part.stop_reason
        return kept

    def _add_ids(self, part: _Part) -> int:
        """Keep the ids of tokens; returns their bytes."""
        prompt, ids = inner_of(part.prompt_token_ids), inner_of(part.token_ids)
        if prompt:
            self.ends.setdefault("prompt_token_ids", as_list([prompt]))
        if ids:
            self.token_ids.append(ids)
        return len(prompt) + len(ids)

    def _add_call(self, delta: dict[str, Any]) -> int:
        """Merge a delta of a tool call: its id, type and name arrive once, its arguments in pieces."""
        index = delta.get("index", 0)
        if not isinstance(index, int):
            raise TypeError(f"the index of a tool call is {index!r}")
        call = self.calls.setdefault(index, _Call())
        function = delta.get("function") or {}
        arguments: str = function.get("arguments") or ""
        call.id = call.id or delta.get("id")
        call.name = call.name or function.get("name") or ""
        call.arguments.append(arguments)
        return len(arguments) + _CALL_BYTES

    def _all_logprobs(self) -> dict[str, msgspec.Raw]:
        return {name: as_list(pieces) for name, pieces in self.logprobs.items()}

    def _all_ends(self) -> dict[str, Any]:
        """How the choice ends, and the ids of its tokens where the engine tells them."""
        if not self.token_ids:
            return self.ends
        return {**self.ends, "token_ids": as_list(self.token_ids)}

    def chat(self) -> dict[str, Any]:
        """Return the choice of a chat completion."""
        members = {"role": self.role, **{name: "".join(pieces) for name, pieces in self.texts.items()}}
        calls = [self.calls[index].encoded() for index in sorted(self.calls)]
        return chat_choice(self.index, members, calls, self._all_logprobs(), self._all_ends())

    def text_choice(self) -> dict[str, Any]:
        """Return the choice of a text completion."""
        text = "".join(self.texts.get("content", ()))
        return {
            "index": self.index,
            "text": text,
            "logprobs": self._all_logprobs() or None,
            **self._all_ends(),
        }


class _Call:
    """A tool call while its deltas are merged."""

    __slots__ = ("arguments", "id", "name")

    def __init__(self) -> None:
        self.id: str | None = None
        self.name = ""
        self.arguments: list[str] = []

    def encoded(self) -> dict[str, Any]:
        """The call as a message contains it."""
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": "".join(self.arguments)},
        }
