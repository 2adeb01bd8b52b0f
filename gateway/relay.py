"""The relay sends the engine's bytes to the client and counts their tokens.

The engine is asked for a stream with running counts even when the client wants one whole answer. Otherwise the tokens
of a request would be unknown when the request is aborted or its process dies. Such a stream has about one event per
second (gateway/interval.py), each merged as it arrives (gateway/merge_chunks.py). Only requests with tools are asked
for in one piece, where their hold covers it (gateway/whole.py).

Each read is followed by at most one write, in the callback that brought it: no task wakes for a chunk. While the
client reads slowly, only bounded buffers fill, and reading from the engine pauses; below the rate in `StreamTimeouts`
the request is aborted and billed. Tokens are counted before they are relayed, so that delivered <= billed <= generated
however the request ends.
"""

import asyncio
import logging
from collections.abc import Callable

from billing.metering.records import Outcome, UsageRecord
from core.errors import EngineFailed, InvalidRequest
from gateway import answers
from gateway.context import AnyContext
from gateway.embeddings import Embeddings, embeddings_answer
from gateway.engine import HEADERS_TIMEOUT_S
from gateway.interval import stream_interval
from gateway.limits import MAX_ANSWER_BYTES, MAX_EVENT_BYTES, TOKEN_ID_BYTES, AnswerTooLarge
from gateway.merge_chunks import AnswerMerger
from gateway.ports import Engines, EngineStream, Holds, Scheduler
from gateway.prompt_batches import PromptBatch, batches_of, free_prompts, prompts_of
from gateway.read_relay import ReadRelay, merge
from gateway.records import longest_answer, longest_fits, released, usage_record
from gateway.refusals import RefusedByEngine, engine_error, invalid_request
from gateway.schemas.common import PreparedRequest
from gateway.sse import StreamCodec
from gateway.time_budget import whole_attempt_s
from gateway.tool_calls import reshape_answer
from gateway.usage import UsageTracker
from gateway.whole import WholeAnswer, WholeAnswers
from scheduler.wire import Placement
from workers.ranks import RANK_HEADER

EXTEND_TOKENS = 1024
"""Output tokens by which a hold is extended at a time."""
ENGINE_PATHS = {"chat": "/v1/chat/completions", "text": "/v1/completions", "embeddings": "/v1/embeddings"}
"""Paths on engines by endpoint."""
ENGINE_FAILED_MESSAGE = "The engine failed while answering; nothing is charged. Please try again."
"""The message of an error for which the engine is responsible."""

log = logging.getLogger(__name__)


class Relay:
    """Runs attempts of placed requests on engines and answers clients. One per process; keeps no state of a request."""

    def __init__(
        self,
        engines: Engines,
        scheduler: Scheduler,
        holds: Holds,
        whole: WholeAnswers,
        now: Callable[[], float],
    ) -> None:
        """`now` returns monotonic seconds."""
        self._whole = whole
        self._engines = engines
        self._scheduler = scheduler
        self._holds = holds
        self._now = now

    async def attempt(self, context: AnyContext) -> None:
        """Relay one engine's stream to its end, or until the paid output tokens are used up.

        The answers to many prompts are relayed as one stream after the other. An answer above a bound of the gateway's
        memory ends there. Raises EngineFailed when the attempt fails, and InvalidRequest when the engine refuses the
        request itself.
        """
        try:
            await self._attempt(context)
        except RefusedByEngine as refused:
            request, codec = context.request, context.answer.codec
            error = invalid_request(refused, request.model.name, request.prepared.fields)
            raise error if codec is None else _of_batch(error, codec.batch, request.prepared) from None

    async def _attempt(self, context: AnyContext) -> None:
        """Do what `attempt` describes, but raise RefusedByEngine when the engine refuses the request itself."""
        placement, request, answer = context.routing.placement, context.request, context.answer
        if placement is None:
            raise RuntimeError("a request is relayed only after it is placed")
        prepared = request.prepared
        context.routing.attempts += 1
        if context.reserved.whole:
            await self._attempt_whole(context, placement)
            return
        codec = answer.codec = StreamCodec(
            prepared.choices,
            context.reserved.output_limit,
            relayed=prepared.stream,
            extras=prepared.extras,
            counts_ids=_counts_ids(context, placement),
        )
        if prepared.choices_per_prompt < prepared.choices:
            codec.tracker = UsageTracker(prepared.choices, prepared.choices_per_prompt)
        answer.merger = None if prepared.stream else AnswerMerger(prepared.endpoint, prepared.extras)
        for batch in batches_of(prepared):
            codec.begin_batch(batch)
            await self._relay_batch(context, codec, placement)
            if codec.truncated:
                return

    async def _relay_batch(self, context: AnyContext, codec: StreamCodec, placement: Placement) -> None:
        """Relay the stream of the codec's current batch of prompts, which for most requests are all."""
        answer, batch = context.answer, codec.batch
        answer.stream = stream = await self._open(context, placement, HEADERS_TIMEOUT_S, batch)
        if codec.content_started:
            free_prompts(context.request.prepared, batch)
        try:
            await self._relay_stream(context, stream, codec, placement)
        except BaseException:
            stream.abort()
            raise
        finally:
            answer.last_read_at, answer.reading_since = answer.heard_at, 0.0
            answer.stream = None
        if codec.done and not codec.limit_reached:
            stream.close()
        else:
            stream.abort()

    async def _open(
        self,
        context: AnyContext,
        placement: Placement,
        headers_timeout_s: float,
        batch: PromptBatch | None = None,
    ) -> EngineStream:
        """Send the request to its engine and wait for the headers. Raises EngineFailed or RefusedByEngine."""
        request = context.request
        headers = [("X-Request-Id", request.id_text)]
        if placement.rank is not None:
            headers.append((RANK_HEADER, str(placement.rank)))
        return await self._engines.open(
            placement.url,
            ENGINE_PATHS[request.prepared.endpoint],
            _engine_body(context, placement, batch),
            headers,
            headers_timeout_s=headers_timeout_s,
            key=placement.engine_key,
            authority=placement.engine_authority,
        )

    async def _attempt_whole(self, context: AnyContext, placement: Placement) -> None:
        """Ask the engine for the answer in one piece. Raises EngineFailed or RefusedByEngine.

        Raises RequestTooLarge for embeddings of too many inputs.

        Cancelling closes the connection, at which the engine stops.
        """
        answer, endpoint = context.answer, context.request.prepared.endpoint
        answer.reading_since = dispatched_at = self._now()
        whole: WholeAnswer
        if endpoint == "embeddings":
            whole = Embeddings(context.request.prepared.choices, dispatched_at)
        else:
            whole = self._whole.begin(context, placement, dispatched_at)
        answer.codec = whole
        wait_s = whole_attempt_s(context, placement, dispatched_at)
        body = bytearray()
        answer.held_bytes = 0
        stream: EngineStream | None = None

        def take(data: bytes) -> bool:
            body.extend(data)
            answer.held_bytes = len(body)
            return len(body) <= MAX_ANSWER_BYTES

        try:
            async with asyncio.timeout(wait_s) as answer.timeout:
                stream = await self._open(context, placement, wait_s)
                if await stream.read_into(take):
                    if isinstance(whole, Embeddings):
                        packed = context.request.prepared.fields.get("encoding_format") == "base64"
                        raise whole.too_large(body, packed=packed)
                    raise EngineFailed("The engine's answer is larger than its limit allows.")
            whole.take(endpoint, bytes(body))
        except BaseException as error:
            if stream is not None:
                stream.abort()
            if isinstance(error, TimeoutError):
                raise EngineFailed("The engine has not answered in time.") from None
            raise
        finally:
            answer.timeout = None
            answer.last_read_at, answer.reading_since = dispatched_at, 0.0
        stream.close()
        answer.committed = True

    async def _relay_stream(
        self, context: AnyContext, stream: EngineStream, codec: StreamCodec, placement: Placement
    ) -> None:
        """Read, count and write until the engine ends or fails, or the paid output tokens are used up.

        `ReadRelay.take` does so for each read of the steady state. This task wakes for the rest: the first content, a
        limit, an error, the end, and a client that reads slowly.
        """
        answer = context.answer
        reads = ReadRelay(context, codec, self._now)
        answer.reading_since = self._now()
        try:
            while not codec.done and await stream.read_into(reads.take):
                if codec.limit_reached or codec.error is not None:
                    reads.unsent.append(await self._extend_or_fail(context, codec))
                if codec.content_started:
                    if not answer.first_content_at:
                        self._commit(context, codec, placement)
                    await self._deliver(context, reads.take_unsent())
                if codec.limit_reached:
                    return
        except AnswerTooLarge:
            if not answer.committed:
                raise
            codec.cut = True
            return
        if not codec.done and not codec.complete:
            raise EngineFailed("The engine's answer broke off.")
        answer.committed = True
        await self._deliver(context, reads.take_unsent())

    def _commit(self, context: AnyContext, codec: StreamCodec, placement: Placement) -> None:
        """Note that content has arrived: the request stays with this attempt, and what it sent is not needed again."""
        context.answer.committed = True
        free_prompts(context.request.prepared, codec.batch)
        context.answer.first_content_at = self._now()
        self._scheduler.prefill_done(placement)

    async def _extend_or_fail(self, context: AnyContext, codec: StreamCodec) -> bytes:
        """Extend the hold and return the events that it then covers.

        For an error of the engine raises EngineFailed, or RefusedByEngine when none of these prompts has been answered.
        """
        out = b""
        while codec.limit_reached and await self._extend(context, codec.withheld_output):
            out += codec.raise_limit(context.reserved.output_limit)
        if codec.error is not None:
            error = engine_error(codec.error)
            refusal = None if codec.batch_started else error.refusal(error.code)
            raise refusal or EngineFailed(f"The engine reported an error (code {error.code}).")
        return out

    async def _deliver(self, context: AnyContext, events: bytes) -> None:
        """Send events to the client, or merge them for an answer that is not streamed.

        Raises AnswerTooLarge, and EngineFailed when an event does not have OpenAI's shape.
        """
        if not events:
            return
        answer, request = context.answer, context.request
        if answer.merger is not None:
            merge(answer.merger, events, request.id)
            return
        answer.writing_since = self._now()
        if not request.reply.started:
            await request.reply.start(context.take_headers(), context.usage.input)
        await request.reply.write(events)
        answer.writing_since, answer.written_at = 0.0, self._now()

    async def _extend(self, context: AnyContext, output: int) -> bool:
        """Extend the hold of a request without max_tokens, towards `output` tokens; False when its output ends here.

        When the money does not cover EXTEND_TOKENS more, only the tokens that have arrived are asked for.
        """
        request, reserved = context.request, context.reserved
        room = longest_answer(request.prepared, request.model) - reserved.output_limit
        if request.prepared.max_tokens or room <= 0:
            return False
        missing = min(output - reserved.output_limit, room)
        for more in sorted({max(missing, min(EXTEND_TOKENS, room)), missing}, reverse=True):
            if await self._holds.extend(request.id, more):
                reserved.output_limit += more
                return True
        return False

    async def finish(self, context: AnyContext) -> None:
        """Set the outcome after a successful attempt and send the end of the answer, which contains the outcome.

        Raises EngineFailed when the engine's events cannot be merged into an answer.
        """
        codec = context.answer.codec
        if codec is None:
            raise RuntimeError("only an attempted request can be finished")
        context.outcome = _outcome_of(context, codec)
        context.settled_at = self._now()
        record = context.usage_record = usage_record(context, context.settled_at)
        if (placement := context.routing.placement) is not None:
            context.routing.released = True  # a client that reads slowly must not keep a place on the engine
            self._scheduler.release(released(placement, context.usage))
        if context.request.prepared.stream:
            await self._end_stream(context, codec, record)
        else:
            await self._send_answer(context, codec, record)

    async def _end_stream(self, context: AnyContext, codec: StreamCodec, record: UsageRecord) -> None:
        request = context.request
        if not request.reply.started:
            await request.reply.start(context.take_headers(), context.usage.input)
        context.answer.writing_since = context.settled_at
        await request.reply.end(
            answers.final_events(
                request.prepared.endpoint,
                codec.first_chunk,
                record,
                fingerprint=codec.fingerprint,
                truncated=codec.truncated,
                include_usage=request.prepared.include_usage,
                unfinished=codec.unfinished,
            )
        )

    async def _send_answer(self, context: AnyContext, codec: StreamCodec, record: UsageRecord) -> None:
        request, merger = context.request, context.answer.merger
        if isinstance(codec, WholeAnswer):
            document = codec.document
        elif merger is not None:
            document = merger.answer(codec.unfinished if codec.truncated else ())
        else:
            raise RuntimeError("only an answer that is not streamed is sent in one piece")
        if isinstance(codec, Embeddings):
            body, headers = embeddings_answer(document, record)
        else:
            reshape_answer(document, request.prepared.calls)
            body, headers = answers.whole_answer(
                document, record, truncated=codec.truncated, fingerprint=codec.fingerprint
            )
        context.answer.held_bytes = len(body)
        context.answer.writing_since = context.settled_at
        await request.reply.respond(body, context.take_headers() + headers)


def _of_batch(error: InvalidRequest, batch: PromptBatch, prepared: PreparedRequest) -> InvalidRequest:
    """The error with the numbers of the prompts that the engine refused, when it got a part of them."""
    if not prepared.parts:
        return error
    first, count = batch.first // prepared.choices_per_prompt, batch.choices // prepared.choices_per_prompt
    where = f"It is about one of the prompts {first + 1:,} to {first + count:,}."
    return InvalidRequest(f"{error.message} {where}", code=error.code, param=error.param)


def _engine_body(context: AnyContext, placement: Placement, batch: PromptBatch | None = None) -> bytes:
    """The body for the engine, with the prompts of `batch`, and the interval of its events where it takes one."""
    request, prepared, model = context.request, context.request.prepared, context.request.model
    # Engines refuse a limit that does not fit beside the prompt, of which only an upper bound is known.
    fits = longest_fits(prepared, model)
    to_context_end = prepared.limit_yields and not fits
    limited = prepared.max_tokens > 0 and not to_context_end
    interval = 0
    if placement.stream_interval and not context.reserved.whole:
        covered = 0 if limited else context.reserved.output_limit // prepared.choices
        interval = stream_interval(placement.predicted_itl_s, streamed=prepared.stream, covered=covered)
    return prepared.engine_body(
        model.adapter or placement.model,
        request.principal.cache_salt,
        reasoning="reasoning" in model.capabilities,
        interval=interval,
        whole=context.reserved.whole,
        max_tokens=longest_answer(prepared, model) // prepared.choices
        if fits and not prepared.max_tokens
        else 0,
        to_context_end=to_context_end,
        prompts=prompts_of(prepared, batch) if batch is not None else None,
        priority=placement.priority,
        counts_ids=_counts_ids(context, placement),
    )


def _counts_ids(context: AnyContext, placement: Placement) -> bool:
    """Whether the tokens of an attempt's stream are counted by their ids.

    An engine lists those of a prompt in one event, which must not become too large.
    """
    request = context.request
    longest = min(request.prepared.max_input_tokens, request.model.context_len)
    fits = longest * TOKEN_ID_BYTES <= MAX_EVENT_BYTES
    return placement.counts_ids and not context.reserved.whole and fits


def _outcome_of(context: AnyContext, codec: StreamCodec) -> Outcome:
    """The outcome of a request whose engine did not fail.

    Free is only an answer that delivered nothing because the model ended it. One that ended at its limit, or whose
    request can make the model end at once, would be a way to use an engine for nothing.
    """
    ended_by_model = "length" not in codec.finish_reasons.values() and not codec.truncated
    if not codec.content_started and ended_by_model and not context.request.prepared.may_force_end:
        return Outcome.ZERO_OUTPUT
    if codec.limit_reached:
        prepared, model = context.request.prepared, context.request.model
        bounded = prepared.max_tokens or context.reserved.output_limit >= longest_answer(prepared, model)
        return Outcome.LENGTH if bounded else Outcome.BUDGET_STOPPED
    return Outcome.COMPLETED if ended_by_model else Outcome.LENGTH
