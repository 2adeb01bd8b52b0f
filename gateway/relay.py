"""Relay: the engine's bytes to the client, counted on the way.

The engine is asked for a stream with running counts even when the client wants one whole answer. Only so are the
tokens of a request known that is abandoned, or whose process dies, half-way: the promise "at most one second of
tokens unbilled" holds without streaming too. The price is a fold at the end (gateway/fold.py), about a microsecond
per event.

One write per read and nothing in between: while the client lags, the socket's bounded buffers are the queue, reading
from the engine pauses, and after `Patience.write_s` the request is cut and billed. What is relayed has been counted
before, so delivered <= billed <= generated however the request ends.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from billing.records import Outcome
from core.errors import EngineFailed, InvalidRequest, Refused, RequestTooLarge, Unavailable
from core.tokens import TokenUsage
from gateway import answers
from gateway.caps import MAX_ANSWER_BYTES
from gateway.engine import error_message
from gateway.ports import Engines, Holds, Placer
from gateway.run import Run
from gateway.sse import StreamCodec
from scheduler.wire import Placement, Released

MAX_ATTEMPTS = 2
EXTEND_TOKENS = 1024
PATHS = {"chat": "/v1/chat/completions", "text": "/v1/completions"}
_BROKEN = "The engine failed while answering; nothing is charged. Please try again."

log = logging.getLogger(__name__)
AnyRun = Run[Any]
Replace = Callable[[AnyRun], Awaitable[None]]
"""Places a run once more; raises Refused."""


class Relay:
    """Runs a placed request on its engine and answers the client."""

    def __init__(
        self,
        engines: Engines,
        placer: Placer,
        holds: Holds,
        now: Callable[[], float],
        replace: Replace,
    ) -> None:
        self._engines = engines
        self._placer = placer
        self._holds = holds
        self._now = now
        self._replace = replace

    async def run(self, run: AnyRun) -> None:
        """From the engine's first byte to the client's last. Sets the outcome before the last bytes go out.

        A failed attempt is placed once more while the client has no content. Raises EngineFailed when the request
        failed for good, InvalidRequest when the engine finds fault with it.
        """
        while True:
            try:
                await self._attempt(run)
                break
            except InvalidRequest:
                run.outcome = Outcome.ZERO_OUTPUT
                raise
            except EngineFailed as error:
                replica = run.placement.replica_id if run.placement is not None else ""
                log.warning("attempt %d on %s failed: %s", run.attempts, replica, error.message)
                if not await self._place_once_more(run):
                    run.outcome = Outcome.ENGINE_FAILED
                    raise EngineFailed(_BROKEN) from error
        await self._finish(run)

    async def _attempt(self, run: AnyRun) -> None:
        """One engine, one stream, to its end or to our limit."""
        placement = run.placement
        if placement is None:
            raise RuntimeError("a request is relayed only once it is placed")
        run.attempts += 1
        codec = run.codec = StreamCodec(run.prepared.choices, run.limit)
        body = run.prepared.engine_body(
            placement.model, run.principal.cache_salt, reasoning="reasoning" in run.model.capabilities
        )
        headers = (("X-Request-Id", str(run.request_id)),)
        run.stream = stream = await self._engines.open(
            placement.url, PATHS[run.prepared.dialect], body, headers
        )
        try:
            await self._pump(run, codec, placement)
        except BaseException:
            stream.abort()
            raise
        finally:
            run.heard_at, run.touched_at = run.touched_at, 0.0
            run.stream = None
        if codec.done and not codec.cut_at_limit:
            stream.close()
        else:
            stream.abort()

    async def _pump(self, run: AnyRun, codec: StreamCodec, placement: Placement) -> None:
        """Read, count, write, until the engine is done, breaks, or the paid tokens are used up."""
        stream = run.stream
        if stream is None:
            raise RuntimeError("there is no stream to pump")
        held: list[bytes] = []
        streaming = run.prepared.stream
        write = run.reply.write
        run.touched_at = self._now()
        while not codec.done:
            data = await stream.read()
            if not data:
                break
            run.touched_at = now = self._now()
            out = codec.feed(data)
            if codec.cut_at_limit or codec.error is not None:
                out += await self._beyond(run, codec)
            if not run.committed:
                held.append(out)
                if codec.started:
                    self._commit(run, placement)
                    await self._deliver(run, b"".join(held))
            elif out and streaming:
                run.writing_since = now
                await write(out)
                run.writing_since = 0.0
            elif out:
                await self._deliver(run, out)
            if codec.cut_at_limit:
                return
        if not codec.done and not codec.complete:
            raise EngineFailed("The engine's answer broke off.")
        if held and not run.committed:
            run.committed = True
            await self._deliver(run, b"".join(held))

    def _commit(self, run: AnyRun, placement: Placement) -> None:
        """The first content is here: there will be no other attempt."""
        run.committed = True
        run.first_content_at = self._now()
        self._placer.prefill_done(placement)

    async def _beyond(self, run: AnyRun, codec: StreamCodec) -> bytes:
        """What a read left undone: pay for more and go on, or raise what the engine reported."""
        out = b""
        while codec.cut_at_limit and await self._extend(run):
            out += codec.raise_limit(run.limit)
        if codec.error is not None:
            raise EngineFailed(f"The engine reported: {error_message(codec.error) or 'an error'}")
        return out

    async def _deliver(self, run: AnyRun, events: bytes) -> None:
        """To the client's socket, or to the side until the answer is whole."""
        if not run.prepared.stream:
            run.collected.append(events)
            run.collected_bytes += len(events)
            if run.collected_bytes > MAX_ANSWER_BYTES:
                raise RequestTooLarge(
                    "The answer is too large to be sent in one piece; ask for a stream.",
                    code="answer_too_large",
                )
            return
        run.writing_since = self._now()
        if not run.reply.started:
            await run.reply.start(run.grant.headers if run.grant is not None else [])
        await run.reply.write(events)
        run.writing_since = 0.0

    async def _extend(self, run: AnyRun) -> bool:
        """Pay for more output of a request that named no max_tokens; False when it must end here.

        With PostgreSQL away the running answer goes on: what it then costs beyond the hold is settled as far as the
        balance reaches.
        """
        whole = run.model.max_output_tokens * run.prepared.choices
        more = min(EXTEND_TOKENS, whole - run.limit)
        if run.prepared.max_tokens or more <= 0:
            return False
        try:
            granted = await self._holds.extend(run.request_id, more)
        except Unavailable:
            log.warning("hold of %s not extended: billing is away; the answer goes on", run.request_id)
            granted = True
        if granted:
            run.limit += more
        return granted

    async def _place_once_more(self, run: AnyRun) -> bool:
        """After a failed attempt: another replica, under the same hold and deadline. False when it is too late."""
        failed = run.placement
        if run.committed or run.attempts >= MAX_ATTEMPTS or failed is None:
            return False
        usage = run.usage
        self._placer.release(released(failed, usage, failed=True))
        run.attempt_failed(failed, self._now())
        run.placement = None
        run.excluded.append(failed.replica_id)
        try:
            await self._replace(run)
        except Refused as refusal:
            log.warning("no other replica for %s: %s", run.request_id, refusal.message)
            return False
        return True

    async def _finish(self, run: AnyRun) -> None:
        """Name the outcome, then send the end of the answer, which says so."""
        codec = run.codec
        if codec is None:
            raise RuntimeError("a finished request has a codec")
        cut = codec.cut_at_limit
        run.outcome = _judge(run, codec)
        run.settled_at = self._now()
        record = run.record(run.settled_at)
        prepared = run.prepared
        if not prepared.stream:
            try:
                body, headers = answers.whole_answer(
                    prepared.dialect, b"".join(run.collected), record, cut=cut
                )
            except (TypeError, AttributeError, ValueError) as error:
                # The engine's events have a shape that no answer can be made of: the client gets nothing for them.
                log.exception("the answer of %s cannot be put together", run.request_id)
                run.outcome = Outcome.ENGINE_FAILED
                raise EngineFailed(_BROKEN) from error
            limits = run.grant.headers if run.grant is not None else []
            await run.reply.respond(body, limits + headers)
            return
        if not run.reply.started:
            await run.reply.start(run.grant.headers if run.grant is not None else [])
        run.writing_since = run.settled_at
        await run.reply.end(
            answers.stream_end(
                prepared.dialect,
                codec.head,
                record,
                cut=cut,
                include_usage=prepared.include_usage,
                unfinished=codec.unfinished,
            )
        )


def _judge(run: AnyRun, codec: StreamCodec) -> Outcome:
    """How a request ended whose engine did not fail."""
    if not codec.started:
        return Outcome.ZERO_OUTPUT
    if codec.cut_at_limit:
        whole = run.model.max_output_tokens * run.prepared.choices
        bounded = run.prepared.max_tokens or run.limit >= whole
        return Outcome.LENGTH if bounded else Outcome.BUDGET_STOPPED
    return Outcome.LENGTH if "length" in codec.finish_reasons else Outcome.COMPLETED


def released(placement: Placement, usage: TokenUsage, *, failed: bool = False) -> Released:
    """The end of a placement, with the counts that correct the scheduler's guesses."""
    return Released(
        placement.request_id,
        placement.replica_id,
        input_tokens=usage.input,
        cached_input_tokens=usage.cached_input,
        output_tokens=usage.output,
        failed=failed,
    )
