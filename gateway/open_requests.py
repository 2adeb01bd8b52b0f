"""The open requests of a process and the timer that serves all of them.

Once a second the timer writes checkpoints of running counts, reports progress to the scheduler, enforces the timeouts
of engines and clients, and sends keep-alive comments to silent streams. One timer costs less than a task per stream.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from operator import itemgetter
from uuid import UUID

import msgspec

from billing.metering.records import Checkpoint
from core.supervise import note_failure, supervise
from gateway.context import AbortReason, AnyContext
from gateway.ports import ClientDisconnected, Metering, Scheduler
from gateway.time_budget import EngineActivity, is_overdue
from gateway.whole import WholeAnswer, WholeAnswers
from scheduler.wire import PoolSnapshot

TICK_S = 1.0
"""Seconds between two ticks of the timer."""
KEEP_ALIVE_AFTER_S = 5.0
"""Seconds from receipt to a stream's headers and first comment; before that a 429 or 503 status is still possible."""
KEEP_ALIVE_EVERY_S = 5.0
"""Seconds of silence after which a stream gets a comment, and between two of them: before its first token, and later
where the engine has nothing to send for long, as while it writes the arguments of a tool call."""
KEEP_ALIVE = b": keep-alive\n\n"
"""A comment of server-sent events, which every client skips."""

MAX_ANSWERS_BYTES = 256 * 1024 * 1024
"""Bytes kept of all answers that are not streamed, where no setting says otherwise."""

log = logging.getLogger(__name__)


class StreamTimeouts(msgspec.Struct, frozen=True):
    """What a client must do in time, while something waits for it; gateway/time_budget.py has what engines must do."""

    read_window_s: float = 60.0
    """Seconds over which it is measured what the client takes."""
    min_read_bytes_per_s: int = 1024
    """What it must take at least. One that takes less is cut; one that reads steadily may take as long as it needs."""


class _Read(msgspec.Struct, gc=False):
    """What waited for a client at the beginning of a window."""

    writing_since: float
    """The write that waits; another one begins another window."""
    began_at: float
    unsent: int


class OpenRequests:
    """The registry of open requests. One per process."""

    def __init__(
        self,
        meter: Metering,
        scheduler: Scheduler,
        whole: WholeAnswers,
        now: Callable[[], float],
        timeouts: StreamTimeouts | None = None,
        activity: EngineActivity | None = None,
        max_answer_bytes: int = MAX_ANSWERS_BYTES,
    ) -> None:
        """`now` returns monotonic seconds. Without `activity` nothing is known of the engines' counters.

        `max_answer_bytes`: of all answers that are not streamed.
        """
        self._max_answer_bytes = max_answer_bytes
        self._answer_bytes: Counter[UUID] = Counter()
        """By organisation, at the last tick."""
        self._meter = meter
        self._scheduler = scheduler
        self._whole = whole
        self._now = now
        self._timeouts = timeouts or StreamTimeouts()
        self._activity = activity or EngineActivity(PoolSnapshot)
        self._open: dict[UUID, AnyContext] = {}
        self._commented_at: dict[UUID, float] = {}
        self._reads: dict[UUID, _Read] = {}
        """Of the requests whose client something waits for."""
        self._comments: set[asyncio.Task[None]] = set()
        self._timer: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the timer."""
        self._timer = supervise("open-requests", self._run_timer)

    async def close(self) -> None:
        """Stop the timer. Open requests are drained by the server."""
        tasks = [*self._comments, *([self._timer] if self._timer is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[AnyContext]:
        return iter(list(self._open.values()))

    def has_room(self, tenant_id: UUID) -> bool:
        """Whether an organisation may begin another answer that is not streamed, by what was held at the last tick.

        Its own may take a quarter of the memory, so that it leaves room for others.
        """
        used = sum(self._answer_bytes.values())
        return used <= self._max_answer_bytes and self._answer_bytes[tenant_id] * 4 <= self._max_answer_bytes

    def add(self, context: AnyContext) -> None:
        """Register a request that begins."""
        self._open[context.request.id] = context

    def discard(self, context: AnyContext) -> None:
        """Remove a request that has ended."""
        self._open.pop(context.request.id, None)
        self._commented_at.pop(context.request.id, None)
        self._reads.pop(context.request.id, None)

    def find(self, request_id: UUID) -> AnyContext | None:
        """Return an open request; None when it is not open."""
        return self._open.get(request_id)

    def abort_keys(self, key_ids: frozenset[UUID]) -> None:
        """Abort every open request of these keys, which were revoked."""
        for context in list(self._open.values()):
            if context.request.principal.key_id in key_ids:
                context.abort(AbortReason.REVOKED)

    def abort_all(self, reason: AbortReason) -> None:
        """Abort every open request."""
        for context in list(self._open.values()):
            context.abort(reason)

    def abort_request(self, request_id: UUID, reason: AbortReason) -> None:
        """Abort one request; does nothing when the request is not open."""
        context = self._open.get(request_id)
        if context is not None:
            context.abort(reason)

    async def _run_timer(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                self.tick()
            except Exception:
                # The timer must go on: without it there are no checkpoints, timeouts or keep-alive comments.
                log.exception("a tick over the open requests failed")
                note_failure("open-requests")

    def tick(self) -> None:
        """Serve every open request once: checkpoint, timeouts, keep-alive comment."""
        now = self._now()
        self._activity.observe(now)
        self._bound_answers()
        for context in list(self._open.values()):
            if isinstance(context.answer.codec, WholeAnswer) and context.outcome is None:
                self._whole.advance(context, context.answer.codec, now)
            self._checkpoint(context)
            self._enforce_timeouts(context, now)
            if context.request.prepared.stream and not context.answer.writing_since:
                self._keep_alive(context, now)

    def _bound_answers(self) -> None:
        """Count the memory of answers that are not streamed, and end answers while it exceeds its bound.

        The largest answers of the organisation that holds most end first: one that is generated with its next event,
        billed as far as it came, one that its client reads slowly or that comes in one piece at once.
        """
        held: defaultdict[UUID, list[tuple[int, AnyContext]]] = defaultdict(list)
        for context in self._open.values():
            if size := context.answer_bytes:
                held[context.request.principal.tenant_id].append((size, context))
        self._answer_bytes = Counter({tenant: sum(size for size, _ in each) for tenant, each in held.items()})
        total = sum(self._answer_bytes.values())
        left = self._answer_bytes.copy()
        while total > self._max_answer_bytes:
            tenant = max(left, key=left.__getitem__)
            size, context = largest = max(held[tenant], key=itemgetter(0))
            held[tenant].remove(largest)
            left[tenant] -= size
            total -= size
            log.warning("answers take too much memory: %d bytes of %s end", size, context.request.id)
            context.end_answer()

    def _checkpoint(self, context: AnyContext) -> None:
        if context.open_record is None or context.outcome is not None:
            return
        usage = context.usage
        if usage.total != context.answer.checkpointed_tokens:  # may be lower: a second attempt begins at 0
            context.answer.checkpointed_tokens = usage.total
            self._meter.checkpoint(Checkpoint(context.request.id, usage))
            if context.routing.placement is not None and not context.reserved.whole:
                tracker = context.answer.codec.tracker if context.answer.codec is not None else None
                produced = tracker.batch.output if tracker is not None else 0
                self._scheduler.progress(context.routing.placement, produced)

    def _enforce_timeouts(self, context: AnyContext, now: float) -> None:
        answer, placement = context.answer, context.routing.placement
        waits = answer.reading_since and not answer.writing_since
        if waits and placement is not None and is_overdue(context, placement, self._activity, now):
            silent_s = now - answer.heard_at
            log.warning(
                "no data from the engine of %s for %.0f s: attempt aborted", context.request.id, silent_s
            )
            context.give_up_attempt()
        if answer.writing_since or context.request.id in self._reads:
            self._cut_slow_reader(context, now)

    def _cut_slow_reader(self, context: AnyContext, now: float) -> None:
        """Abort a request whose client has taken too little since the window began."""
        request_id, since = context.request.id, context.answer.writing_since
        if not since:
            del self._reads[request_id]
            return
        unsent, read, rule = context.request.reply.unsent, self._reads.get(request_id), self._timeouts
        if read is None or read.writing_since != since:
            self._reads[request_id] = _Read(since, now, unsent)
        elif now - read.began_at >= rule.read_window_s:
            if read.unsent - unsent < rule.min_read_bytes_per_s * (now - read.began_at):
                context.abort(AbortReason.SLOW_CLIENT)
            read.began_at, read.unsent = now, unsent

    def _keep_alive(self, context: AnyContext, now: float) -> None:
        """Send a comment when nothing was sent for KEEP_ALIVE_EVERY_S; gateway/time_budget.py ends the silence."""
        request = context.request
        begins = request.received_at + KEEP_ALIVE_AFTER_S - KEEP_ALIVE_EVERY_S
        since = max(self._commented_at.get(request.id, begins), context.answer.sent_at)
        if now - since < KEEP_ALIVE_EVERY_S:
            return
        self._commented_at[request.id] = now
        task = asyncio.create_task(_send_comment(context))
        self._comments.add(task)
        task.add_done_callback(self._comments.discard)


async def _send_comment(context: AnyContext) -> None:
    """Send a comment, which keeps the connections of the client and of proxies from timing out."""
    reply = context.request.reply
    try:
        if not reply.started:
            await reply.start(context.take_headers())
        if context.outcome is None and not context.answer.writing_since:
            await reply.write(KEEP_ALIVE)
    except ClientDisconnected:
        context.abort(AbortReason.CLIENT_DISCONNECTED)
