"""The response object and the typed events of its stream, made from chat events (gateway/dialects/dialect.py)."""

from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

import msgspec

from billing.metering.records import UsageRecord
from core.errors import PenstockError
from core.ids import uuid7_unix_ms
from gateway import answers
from gateway.dialects.chat_events import ChatEvent, Choice, Usage, chat_answer, chat_events
from gateway.dialects.responses.fields import NAMES
from gateway.dialects.responses.output import Event, Output
from gateway.open_requests import KEEP_ALIVE
from gateway.ports import Headers
from gateway.schemas.common import PreparedRequest
from gateway.sse import DONE

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Reasons of incomplete responses by chat's finish reasons."""


def response_id(request_id: UUID) -> str:
    """Return the id of the response to a request."""
    return f"resp_{request_id.hex}"


class Responses:
    """The Responses API's form of answers (gateway.dialects.dialect.Dialect). One per process."""

    names = NAMES

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` returns Unix seconds."""
        self._now = now

    def begin(self, request_id: UUID, prepared: PreparedRequest) -> "ResponseTranslation":
        """Return the empty response to a request."""
        return ResponseTranslation(request_id, prepared, self._now)

    def error(self, request_id: UUID, status: int, error: PenstockError) -> tuple[int, None]:
        """Leave an error in OpenAI's shape, as it is."""
        return status, None

    def headers(self, request_id: UUID, headers: Headers) -> Headers:
        """Return no further headers: they are those of chat."""
        return []


class ResponseTranslation:
    """One response while its chat answer arrives."""

    __slots__ = (
        "_echo",
        "_final",
        "_finish_reason",
        "_id",
        "_model",
        "_now",
        "_output",
        "_request_id",
        "_told",
        "number",
    )

    def __init__(self, request_id: UUID, prepared: PreparedRequest, now: Callable[[], float]) -> None:
        self._request_id = request_id
        self._id = response_id(request_id)
        self._model = prepared.model
        self._echo = msgspec.json.decode(prepared.dialect_fields["echo"], type=dict[str, msgspec.Raw])
        self._now = now
        self.number = 0
        """The number of the next event."""
        self._told = ""
        """The status that the stream has told last."""
        self._output = Output(request_id.hex, prepared.dialect_fields.get("namespaces", {}))
        self._finish_reason: str | None = None
        self._final: ChatEvent | None = None
        """The chat event with the usage, or the bill of an answer that was broken off."""

    def start(self, prompt_tokens: int) -> None:
        """Need nothing: usage comes with the last event."""

    def feed(self, events: bytes) -> bytes:
        """Return the events for whole chat events."""
        return b"".join([*self._begin(), *self._encoded(self._taken(events))])

    def keep_alive(self) -> bytes:
        """Return a comment, which clients skip."""
        return KEEP_ALIVE

    def end(self, events: bytes) -> bytes:
        """Return the last events for the last chat events. Open Responses demands [DONE]; OpenAI's SDKs skip it."""
        return self.close(events) + self.finish(stored=False)

    def close(self, events: bytes) -> bytes:
        """Return the events for the last chat events up to the end of the last item; `finish` returns the rest."""
        parts = [*self._begin(), *self._encoded(self._taken(events))]
        return b"".join([*parts, *self._encoded(self._output.end(self._status))])

    def queue(self) -> bytes:
        """Return the first events of a response that runs in the background and has not begun."""
        self._told = "queued"
        document = self.document("queued")
        kinds = ("response.created", "response.queued")
        return b"".join(self._encoded([{"type": kind, "response": document} for kind in kinds]))

    def progress(self) -> bytes:
        """Return the event of a response in the background whose engine has begun; empty when it was told."""
        return b"".join(self._begin())

    def cancel(self) -> bytes:
        """End the output of a response that its client has cancelled, and return the events of that."""
        return b"".join([*self._begin(), *self._encoded(self._output.end("incomplete"))])

    def bill(self, record: UsageRecord) -> None:
        """Take the bill of a response whose chat answer has not told it, since it was cancelled or has failed."""
        if self._final is None:
            end = answers.final_events(
                "chat", None, record, fingerprint="", truncated=False, include_usage=True, unfinished=()
            )
            self._taken(end)

    def finish(self, *, stored: bool) -> bytes:
        """Return the last event of a stream, with the response, and [DONE]."""
        response = self.response(stored=stored)
        return b"".join([*self._encoded([{"type": f"response.{self._status}", "response": response}]), DONE])

    def response(self, *, stored: bool) -> dict[str, Any]:
        """Return the response after its last item has ended. `stored`: whether it says that it is stored."""
        return {**self.document(self._status), "store": stored}

    def fail(self, status: int, error: PenstockError) -> bytes:
        """Return the last events of a stream that `error` ends.

        The error event has OpenAI's members and, as `error`, those of Open Responses.
        """
        kind = "server_error" if status >= 500 else "invalid_request_error"
        named = {"code": error.code, "message": error.message, "param": error.param}
        ends = [*self._output.end("incomplete")]
        tail: list[Event] = [
            *ends,
            {"type": "error", **named, "error": {"type": kind, **named}},
            {"type": "response.failed", "response": self.failed(status, error)},
        ]
        return b"".join([*self._begin(), *self._encoded(tail), DONE])

    def failed(self, status: int, error: PenstockError) -> dict[str, Any]:
        """Return the response after `fail`."""
        return self.document("failed", error=response_error(status, error))

    def whole(self, body: bytes) -> bytes:
        """Return the response for a chat answer in one piece."""
        self.take_whole(body)
        return msgspec.json.encode(self.response(stored=False))

    def take_whole(self, body: bytes) -> None:
        """Take a chat answer in one piece; `response` is complete then."""
        self._take(chat_answer(body))
        for _ in self._output.end(self._status):
            pass

    @property
    def _status(self) -> str:
        return "incomplete" if self._finish_reason in _INCOMPLETE else "completed"

    def _begin(self) -> list[bytes]:
        """The first events of a stream, once."""
        if self._told == "in_progress":
            return []
        document = self.document("in_progress")
        kinds = ["response.in_progress"] if self._told else ["response.created", "response.in_progress"]
        self._told = "in_progress"
        return self._encoded([{"type": kind, "response": document} for kind in kinds])

    def _taken(self, events: bytes) -> list[Event]:
        return [event for chat in chat_events(events) for event in self._take(chat)]

    def _take(self, chat: ChatEvent) -> list[Event]:
        if chat.usage is not None:
            self._final = chat
        return [event for choice in chat.choices for event in self._take_choice(choice)]

    def _take_choice(self, choice: Choice) -> list[Event]:
        self._finish_reason = choice.finish_reason or self._finish_reason
        return [*self._output.add(choice)]

    def _encoded(self, events: Iterable[Event]) -> list[bytes]:
        parts = []
        for event in events:
            event["sequence_number"] = self.number
            self.number += 1
            parts.append(b"event: %b\ndata: %b\n\n" % (event["type"].encode(), msgspec.json.encode(event)))
        return parts

    def document(self, status: str, error: dict[str, str] | None = None) -> dict[str, Any]:
        """Return the response object with a status; its output are the items that have ended."""
        final, reason = self._final, _INCOMPLETE.get(self._finish_reason or "")
        document = {
            "id": self._id,
            "object": "response",
            "created_at": uuid7_unix_ms(self._request_id) // 1000,
            "completed_at": int(self._now()) if status == "completed" else None,
            "status": status,
            "error": error,
            "incomplete_details": {"reason": reason} if status == "incomplete" else None,
            "model": (final.model if final is not None else "") or self._model,
            "output": self._output.documents(),
            **self._echo,
            "usage": usage_object(final.usage) if final is not None and final.usage is not None else None,
        }
        if final is not None:
            document["service_tier"] = final.service_tier or "default"
            document["penstock"] = final.penstock
        return document


def last_event(response: dict[str, Any], number: int) -> bytes:
    """Return the event with which the stream of a stored response ends; empty for a cancelled one, which has none."""
    kind = f"response.{response['status']}"
    if response["status"] not in ("completed", "incomplete", "failed"):
        return b""
    event = msgspec.json.encode({"type": kind, "response": response, "sequence_number": number})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), event)


def usage_object(usage: Usage) -> dict[str, Any]:
    """Return the usage in this API's form, with the cost as chat has it."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.prompt_tokens_details.cached_tokens,
            "cache_write_tokens": 0,  # writing the cache has no price of its own
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.completion_tokens_details.reasoning_tokens},
        "total_tokens": usage.total_tokens,
        "cost": usage.cost,
    }


def response_error(status: int, error: PenstockError) -> dict[str, str]:
    """Return the error of a failed response. Its code is one of OpenAI's; `status`: what HTTP would have had."""
    code = "rate_limit_exceeded" if status == 429 else "server_error" if status >= 500 else "invalid_prompt"
    return {"code": code, "message": error.message}
