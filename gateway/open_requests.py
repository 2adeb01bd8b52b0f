"""All open requests of a process and the one timer that looks after them.

Once a second: checkpoints of running counts, progress for the scheduler, time limits of silent engines and slow
readers, keep-alive comments for streams that still wait. A task per stream would cost more than the stream.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from uuid import UUID

import msgspec

from billing.metering.records import Checkpoint
from gateway.context import AbortReason, AnyContext
from gateway.ports import Metering, Scheduler

TICK_S = 1.0
KEEP_ALIVE_AFTER_S = 5.0
"""A stream that waits longer gets its headers and a comment; until then a real 429 or 503 is possible (DESIGN §4)."""
KEEP_ALIVE_EVERY_S = 5.0

log = logging.getLogger(__name__)


class StreamTimeouts(msgspec.Struct, frozen=True):
    """How long each phase of a stream may take, in seconds."""

    first_event_s: float = 300.0
    """From dispatch to the first event: a long prompt behind others."""
    idle_s: float = 60.0
    """Between events."""
    write_s: float = 30.0
    """For a lagging client to take what the socket's buffer cannot."""


class OpenRequests:
    """The registry of open requests."""

    def __init__(
        self,
        meter: Metering,
        scheduler: Scheduler,
        now: Callable[[], float],
        timeouts: StreamTimeouts | None = None,
    ) -> None:
        self._meter = meter
        self._scheduler = scheduler
        self._now = now
        self._timeouts = timeouts or StreamTimeouts()
        self._open: dict[UUID, AnyContext] = {}
        self._commented_at: dict[UUID, float] = {}
        self._comments: set[asyncio.Task[None]] = set()
        self._timer: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the timer."""
        self._timer = asyncio.create_task(self._run_timer())

    async def close(self) -> None:
        """Stop the timer; open requests are the server's to drain."""
        tasks = [*self._comments, *([self._timer] if self._timer is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[AnyContext]:
        return iter(list(self._open.values()))

    def add(self, context: AnyContext) -> None:
        """A request begins."""
        self._open[context.request.id] = context

    def discard(self, context: AnyContext) -> None:
        """A request is over."""
        self._open.pop(context.request.id, None)
        self._commented_at.pop(context.request.id, None)

    def abort_keys(self, key_ids: frozenset[UUID]) -> None:
        """End every open request of keys that are no longer good."""
        for context in list(self._open.values()):
            if context.request.principal.key_id in key_ids:
                context.abort(AbortReason.REVOKED)

    def abort_request(self, request_id: UUID, reason: AbortReason) -> None:
        """End one open request; one that is over is left alone."""
        context = self._open.get(request_id)
        if context is not None:
            context.abort(reason)

    async def _run_timer(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                self.tick()
            except Exception:
                # Without the timer nothing would be checkpointed, cut or kept alive any more.
                log.exception("open requests could not be looked after")

    def tick(self) -> None:
        """Look after every open request once."""
        now = self._now()
        for context in list(self._open.values()):
            self._checkpoint(context)
            self._enforce_timeouts(context, now)
            if context.request.prepared.stream and not context.answer.committed:
                self._keep_alive(context, now)

    def _checkpoint(self, context: AnyContext) -> None:
        if context.open_record is None or context.outcome is not None:
            return
        usage = context.usage
        if usage.total != context.answer.checkpointed_tokens:  # also down: a second attempt begins at nothing
            context.answer.checkpointed_tokens = usage.total
            self._meter.checkpoint(Checkpoint(context.request.id, usage))
            if context.routing.placement is not None:
                self._scheduler.progress(context.routing.placement, usage.output)

    def _enforce_timeouts(self, context: AnyContext, now: float) -> None:
        answer = context.answer
        if answer.reading_since and not answer.writing_since and answer.stream is not None:
            heard = answer.codec is not None and answer.codec.first_chunk is not None
            allowed_s = self._timeouts.idle_s if heard else self._timeouts.first_event_s
            if now - answer.reading_since > allowed_s:
                log.warning(
                    "engine silent for %.0f s, giving it up: request %s", allowed_s, context.request.id
                )
                answer.stream.abort()
        if answer.writing_since and now - answer.writing_since > self._timeouts.write_s:
            context.abort(AbortReason.SLOW_CLIENT)

    def _keep_alive(self, context: AnyContext, now: float) -> None:
        request = context.request
        since = self._commented_at.get(
            request.id, request.received_at + KEEP_ALIVE_AFTER_S - KEEP_ALIVE_EVERY_S
        )
        if now - since < KEEP_ALIVE_EVERY_S:
            return
        self._commented_at[request.id] = now
        task = asyncio.create_task(_send_comment(context))
        self._comments.add(task)
        task.add_done_callback(self._comments.discard)


async def _send_comment(context: AnyContext) -> None:
    """Tell a waiting client (and the proxies on the way) that the request is alive."""
    reply = context.request.reply
    if not reply.started:
        await reply.start(context.rate_headers)
    if context.outcome is None and not context.answer.committed:
        await reply.write(b": waiting\n\n" if context.routing.placement is None else b": working\n\n")
