"""Relay: the engine's bytes to the client, counted on the way.

The engine is asked for a stream with running counts even when the client wants one whole answer. Only so are the
tokens of a request known that is abandoned, or whose process dies, half-way: the promise "at most one second of
tokens unbilled" holds without streaming too. The price is one merge at the end (gateway/merge_chunks.py), about a
microsecond per event.

One write per read and nothing in between: while the client lags, the socket's bounded buffers are the queue, reading
from the engine pauses, and after `StreamTimeouts.write_s` the request is cut and billed. What is relayed was counted
before, so delivered <= billed <= generated however the request ends.
"""

import logging
from collections.abc import Callable

from billing.metering.records import Outcome
from core.errors import EngineFailed, RequestTooLarge
from gateway import answers
from gateway.context import AnyContext, Request
from gateway.engine import error_message
from gateway.limits import MAX_ANSWER_BYTES
from gateway.ports import Engines, EngineStream, Holds, Scheduler
from gateway.records import usage_record
from gateway.sse import StreamCodec
from scheduler.wire import Placement

EXTEND_TOKENS = 1024
ENGINE_PATHS = {"chat": "/v1/chat/completions", "text": "/v1/completions"}
ENGINE_FAILED_MESSAGE = "The engine failed while answering; nothing is charged. Please try again."

log = logging.getLogger(__name__)


class Relay:
    """Runs one attempt of a placed request on its engine, and answers the client. One per process."""

    def __init__(
        self, engines: Engines, scheduler: Scheduler, holds: Holds, now: Callable[[], float]
    ) -> None:
        """`now` gives monotonic seconds."""
        self._engines = engines
        self._scheduler = scheduler
        self._holds = holds
        self._now = now

    async def attempt(self, context: AnyContext) -> None:
        """One engine, one stream, to its end or to the request's limit.

        Raises EngineFailed when the attempt failed, and InvalidRequest when the engine refuses the request.
        """
        placement, request, answer = context.routing.placement, context.request, context.answer
        if placement is None:
            raise RuntimeError("a request is relayed only once it is placed")
        prepared = request.prepared
        context.routing.attempts += 1
        codec = answer.codec = StreamCodec(prepared.choices, context.reserved.output_limit)
        body = prepared.engine_body(
            placement.model, request.principal.cache_salt, reasoning="reasoning" in request.model.capabilities
        )
        headers = (("X-Request-Id", str(request.id)),)
        answer.stream = stream = await self._engines.open(
            placement.url, ENGINE_PATHS[prepared.endpoint], body, headers
        )
        try:
            await self._relay_stream(context, stream, codec, placement)
        except BaseException:
            stream.abort()
            raise
        finally:
            answer.last_read_at, answer.reading_since = answer.reading_since, 0.0
            answer.stream = None
        if codec.done and not codec.limit_reached:
            stream.close()
        else:
            stream.abort()

    async def _relay_stream(
        self, context: AnyContext, stream: EngineStream, codec: StreamCodec, placement: Placement
    ) -> None:
        """Read, count, write, until the engine is done, breaks, or the paid tokens are used up."""
        held: list[bytes] = []
        answer = context.answer
        streaming = context.request.prepared.stream
        write = context.request.reply.write
        answer.reading_since = self._now()
        while not codec.done:
            data = await stream.read()
            if not data:
                break
            answer.reading_since = now = self._now()
            out = codec.feed(data)
            if codec.limit_reached or codec.error is not None:
                out += await self._extend_or_fail(context, codec)
            if not answer.committed:
                held.append(out)
                if codec.content_started:
                    self._commit(context, placement)
                    await self._deliver(context, b"".join(held))
            elif out and streaming:
                answer.writing_since = now
                await write(out)
                answer.writing_since = 0.0
            elif out:
                await self._deliver(context, out)
            if codec.limit_reached:
                return
        if not codec.done and not codec.complete:
            raise EngineFailed("The engine's answer broke off.")
        if held and not answer.committed:
            answer.committed = True
            await self._deliver(context, b"".join(held))

    def _commit(self, context: AnyContext, placement: Placement) -> None:
        """The first content is here: there will be no other attempt."""
        context.answer.committed = True
        context.answer.first_content_at = self._now()
        self._scheduler.prefill_done(placement)

    async def _extend_or_fail(self, context: AnyContext, codec: StreamCodec) -> bytes:
        """What a read left undone: pay for more and go on, or raise what the engine reported."""
        out = b""
        while codec.limit_reached and await self._extend(context):
            out += codec.raise_limit(context.reserved.output_limit)
        if codec.error is not None:
            raise EngineFailed(f"The engine reported: {error_message(codec.error) or 'an error'}")
        return out

    async def _deliver(self, context: AnyContext, events: bytes) -> None:
        """To the client's socket, or to the side until the answer is whole."""
        answer, request = context.answer, context.request
        if not request.prepared.stream:
            answer.collected.append(events)
            answer.collected_bytes += len(events)
            if answer.collected_bytes > MAX_ANSWER_BYTES:
                raise RequestTooLarge(
                    "The answer is too large to be sent in one piece; ask for a stream.",
                    code="answer_too_large",
                )
            return
        answer.writing_since = self._now()
        if not request.reply.started:
            await request.reply.start(context.rate_headers)
        await request.reply.write(events)
        answer.writing_since = 0.0

    async def _extend(self, context: AnyContext) -> bool:
        """Pay for more output of a request that named no max_tokens; False when it must end here."""
        request, reserved = context.request, context.reserved
        more = min(EXTEND_TOKENS, _longest_answer(request) - reserved.output_limit)
        if request.prepared.max_tokens or more <= 0:
            return False
        granted = await self._holds.extend(request.id, more)
        if granted:
            reserved.output_limit += more
        return granted

    async def finish(self, context: AnyContext) -> None:
        """Name the outcome of an attempt that ended well, then send the end of the answer, which says so.

        Raises EngineFailed when no answer can be made of the engine's events.
        """
        codec = context.answer.codec
        if codec is None:
            raise RuntimeError("a finished request has a codec")
        context.outcome = _outcome_of(context, codec)
        context.settled_at = self._now()
        if context.request.prepared.stream:
            await self._end_stream(context, codec)
        else:
            await self._send_whole(context, codec)

    async def _end_stream(self, context: AnyContext, codec: StreamCodec) -> None:
        request, record = context.request, usage_record(context, context.settled_at)
        if not request.reply.started:
            await request.reply.start(context.rate_headers)
        context.answer.writing_since = context.settled_at
        await request.reply.end(
            answers.final_events(
                request.prepared.endpoint,
                codec.first_chunk,
                record,
                truncated=codec.limit_reached,
                include_usage=request.prepared.include_usage,
                unfinished=codec.unfinished,
            )
        )

    async def _send_whole(self, context: AnyContext, codec: StreamCodec) -> None:
        request, record = context.request, usage_record(context, context.settled_at)
        events = b"".join(context.answer.collected)
        try:
            body, headers = answers.whole_answer(
                request.prepared.endpoint, events, record, truncated=codec.limit_reached
            )
        except (TypeError, AttributeError, ValueError) as error:
            # The engine's events have a shape that no answer can be made of: the client gets nothing for them.
            log.exception("the answer of %s cannot be put together", request.id)
            context.outcome = Outcome.ENGINE_FAILED
            raise EngineFailed(ENGINE_FAILED_MESSAGE) from error
        await request.reply.respond(body, context.rate_headers + headers)


def _outcome_of(context: AnyContext, codec: StreamCodec) -> Outcome:
    """How a request ended whose engine did not fail."""
    if not codec.content_started:
        return Outcome.ZERO_OUTPUT
    if codec.limit_reached:
        request = context.request
        bounded = request.prepared.max_tokens or context.reserved.output_limit >= _longest_answer(request)
        return Outcome.LENGTH if bounded else Outcome.BUDGET_STOPPED
    return Outcome.LENGTH if "length" in codec.finish_reasons else Outcome.COMPLETED


def _longest_answer(request: Request) -> int:
    """Output tokens, over all choices, at which an answer ends that no max_tokens bounds."""
    return request.model.max_output_tokens * request.prepared.choices
