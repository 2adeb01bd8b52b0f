"""The events of a streamed message, from those of a chat answer.

Anthropic's stream has its content in blocks, one after the other: thoughts, text and one block for each call of a tool.
"""

from typing import Any
from uuid import UUID

import msgspec

from core.errors import PenstockError
from gateway.dialects.chat_events import ChatEvent, Choice, ToolCallDelta, Usage, chat_answer, chat_events
from gateway.dialects.messages.answer import (
    call_id_of,
    message_object,
    signature_of,
    stop_of,
    text_block,
    tool_block,
    usage_object,
    whole_message,
)
from gateway.dialects.messages.errors import error_document, status_of
from gateway.dialects.messages.request import HIDDEN, SHOWN

PING_EVERY = 32
"""Events without anything for the client, such as thoughts that are not shown, for which it gets one sign of life."""
_encoder = msgspec.json.Encoder()


def _event(kind: str, **members: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _encoder.encode({"type": kind, **members}))


PING = _event("ping")


class _Call:
    """A call of a tool while it arrives."""

    __slots__ = ("block", "id", "name", "pending")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.pending = ""
        """Arguments that came before the name."""
        self.block = -1
        """Its index among the blocks; -1 = not begun."""


class MessageTranslation:
    """The answer to one request, translated as it arrives (gateway.dialects.dialect.Translation)."""

    __slots__ = (
        "_blocks", "_calls", "_finish", "_max_tokens", "_open", "_prompt_tokens", "_request_id", "_sequence", "_silent",
        "_started", "_thinking",
    )  # fmt: skip

    def __init__(self, request_id: UUID, thinking: str, max_tokens: int) -> None:
        """`thinking`: what the answer has of the model's thoughts. `max_tokens`: the request's."""
        self._request_id = request_id
        self._thinking = thinking
        self._max_tokens = max_tokens
        self._prompt_tokens = 0
        self._started = False
        self._blocks = 0
        """Blocks that have begun."""
        self._open = ""
        """The type of the last block while it is open: thinking, text, or tool_use."""
        self._calls: dict[int, _Call] = {}
        """By chat's index of the call."""
        self._finish: str | None = None
        self._sequence: int | str | None = None
        self._silent = 0
        """Chat events since the last one that gave the client something."""

    def start(self, prompt_tokens: int) -> None:
        """Take the tokens of the prompt for the first event; 0 = not known yet."""
        self._prompt_tokens = prompt_tokens

    def feed(self, events: bytes) -> bytes:
        """Return the events for whole chat events; may be empty."""
        out: list[bytes] = []
        for event in chat_events(events):
            self._add(event, out)
        if out:
            self._silent = 0
            return b"".join(out)
        self._silent += 1
        return PING if self._silent % PING_EVERY == 0 else b""

    def keep_alive(self) -> bytes:
        """Return what a silent stream sends to keep its connection open."""
        return PING

    def end(self, events: bytes) -> bytes:
        """Return the last events for the last chat events, which have usage and cost."""
        out: list[bytes] = []
        last = ChatEvent()
        for event in chat_events(events):
            self._add(event, out)
            last = event if event.usage is not None else last
        self._start(last.model, out)
        self._close(out)
        usage = last.usage or Usage()
        delta = stop_of(
            self._finish, self._sequence, usage.completion_tokens, self._max_tokens, called=bool(self._calls)
        )
        counts = usage_object(usage, last.service_tier)
        out.append(_event("message_delta", delta=delta, usage=counts, penstock=last.penstock))
        out.append(_event("message_stop"))
        return b"".join(out)

    def fail(self, status: int, error: PenstockError) -> bytes:
        """Return the last event of a stream that `error` ends."""
        document = error_document(self._request_id, status_of(status, error), error)
        del document["type"]
        return _event("error", **document)

    def whole(self, body: bytes) -> bytes:
        """Return the document for a chat answer in one piece."""
        return _encoder.encode(
            whole_message(self._request_id, chat_answer(body), self._thinking, self._max_tokens)
        )

    def _add(self, event: ChatEvent, out: list[bytes]) -> None:
        self._start(event.model, out)
        for choice in event.choices:
            self._add_choice(choice, out)

    def _start(self, model: str, out: list[bytes]) -> None:
        if self._started:
            return
        self._started = True
        usage = usage_object(Usage(prompt_tokens=self._prompt_tokens))
        out.append(_event("message_start", message=message_object(self._request_id, model, [], usage)))

    def _add_choice(self, choice: Choice, out: list[bytes]) -> None:
        delta = choice.delta
        if delta.reasoning_content and self._thinking != HIDDEN:
            self._add_thoughts(delta.reasoning_content, out)
        if text := (delta.content or "") + (delta.refusal or ""):
            if self._open != "text":
                self._begin_block("text", text_block(""), out)
            out.append(self._delta(self._blocks - 1, {"type": "text_delta", "text": text}))
        for part in delta.tool_calls or ():
            self._add_call(part, out)
        if choice.finish_reason is not None:
            self._finish, self._sequence = choice.finish_reason, choice.stop_reason
            self._close(out)

    def _add_thoughts(self, text: str, out: list[bytes]) -> None:
        if self._open != "thinking":
            self._begin_block("thinking", {"type": "thinking", "thinking": "", "signature": ""}, out)
        if self._thinking == SHOWN:
            out.append(self._delta(self._blocks - 1, {"type": "thinking_delta", "thinking": text}))

    def _add_call(self, part: ToolCallDelta, out: list[bytes]) -> None:
        call = self._calls.setdefault(part.index, _Call())
        call.id = call.id or part.id or ""
        function = part.function
        if function is not None:
            call.name = call.name or function.name or ""
            call.pending += function.arguments or ""
        if not call.name:
            return
        if call.block < 0:
            call_id = call.id or call_id_of(self._request_id, part.index)
            self._begin_block("tool_use", tool_block(call_id, call.name, {}), out)
            call.block = self._blocks - 1
        if call.pending:
            out.append(self._delta(call.block, {"type": "input_json_delta", "partial_json": call.pending}))
            call.pending = ""

    def _begin_block(self, kind: str, block: dict[str, Any], out: list[bytes]) -> None:
        self._close(out)
        self._open = kind
        out.append(_event("content_block_start", index=self._blocks, content_block=block))
        self._blocks += 1

    def _delta(self, index: int, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=index, delta=delta)

    def _close(self, out: list[bytes]) -> None:
        """End the open block, if there is one."""
        if not self._open:
            return
        index = self._blocks - 1
        if self._open == "thinking":
            signature = signature_of(self._request_id)
            out.append(self._delta(index, {"type": "signature_delta", "signature": signature}))
        out.append(_event("content_block_stop", index=index))
        self._open = ""
