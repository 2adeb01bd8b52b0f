"""Relays the reads of an engine's stream in the callbacks that bring them."""

import logging
from collections.abc import Callable
from uuid import UUID

from core.errors import EngineFailed
from gateway.context import AnyContext
from gateway.merge_chunks import AnswerMerger
from gateway.sse import StreamCodec

log = logging.getLogger(__name__)


class ReadRelay:
    """Takes the engine's reads of one attempt in the event loop's callback, without waking the attempt's task."""

    __slots__ = ("_answer", "_codec", "_now", "_request_id", "_write_now", "unsent")

    def __init__(self, context: AnyContext, codec: StreamCodec, now: Callable[[], float]) -> None:
        self._answer = context.answer
        self._codec = codec
        self._now = now
        self._request_id = context.request.id
        self._write_now = context.request.reply.write_now
        self.unsent: list[bytes] = []
        """Events that the task has to deliver."""

    def take(self, data: bytes) -> bool:
        """Count the tokens of one read and relay it; False when the task has to act. Raises AnswerTooLarge.

        Raises EngineFailed when the engine sends something that is not a chunk or cannot be merged.
        """
        codec = self._codec
        codec.read_at = now = self._now()
        event = codec.relay_one(data)  # only of a stream whose first content the task has delivered
        if event is None:
            return self._take_other(data)
        if self._write_now(event):
            codec.relayed_at = now
            return True
        self.unsent.append(event)
        return False

    def _take_other(self, data: bytes) -> bool:
        """Take a read that is not one event of the steady state, as `take` does."""
        answer, codec = self._answer, self._codec
        events = codec.feed(data)
        acts = codec.done or codec.limit_reached or codec.error is not None
        if answer.committed and not acts:
            if answer.merger is not None:
                merge(answer.merger, events, self._request_id)
                return True
            if not events:
                return True
            if self._write_now(events):
                codec.relayed_at = codec.read_at
                return True
            acts = True
        self.unsent.append(events)
        return not (acts or codec.content_started)

    def take_unsent(self) -> bytes:
        """Return the events that the task has to deliver, and forget them."""
        events = b"".join(self.unsent)
        self.unsent.clear()
        return events


def merge(merger: AnswerMerger, events: bytes, request_id: UUID) -> None:
    """Merge events into an answer that is not streamed. Raises AnswerTooLarge and EngineFailed."""
    try:
        merger.add(events)
    except (TypeError, AttributeError, ValueError) as error:
        # The client gets no answer and pays nothing.
        # Without the error's text, which may quote the answer.
        log.error("an event of %s cannot be merged into an answer: %s", request_id, type(error).__name__)
        raise EngineFailed("The engine sent an event that cannot be merged.") from error
