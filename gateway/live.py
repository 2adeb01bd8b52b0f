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
from gateway.ports import Metering, Placer
from gateway.run import AnyRun, Cut

TICK_S = 1.0
KEEP_ALIVE_AFTER_S = 5.0
"""A stream that waits longer gets its headers and a comment; until then a real 429 or 503 is possible (DESIGN §4)."""
KEEP_ALIVE_EVERY_S = 5.0

log = logging.getLogger(__name__)


class Patience(msgspec.Struct, frozen=True):
    """How long each phase of a stream may take, in seconds."""

    first_event_s: float = 300.0
    """From dispatch to the first event: a long prompt behind others."""
    idle_s: float = 60.0
    """Between events."""
    write_s: float = 30.0
    """For a lagging client to take what the socket's buffer cannot."""


class LiveRuns:
    """The registry of open requests."""

    def __init__(
        self,
        meter: Metering,
        placer: Placer,
        now: Callable[[], float],
        patience: Patience | None = None,
    ) -> None:
        self._meter = meter
        self._placer = placer
        self._now = now
        self._patience = patience or Patience()
        self._runs: dict[UUID, AnyRun] = {}
        self._commented: dict[UUID, float] = {}
        self._sends: set[asyncio.Task[None]] = set()
        self._timer: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the timer."""
        self._timer = asyncio.create_task(self._run_timer())

    async def close(self) -> None:
        """Stop the timer; open requests are the server's to drain."""
        tasks = [*self._sends, *([self._timer] if self._timer is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[AnyRun]:
        return iter(list(self._runs.values()))

    def add(self, run: AnyRun) -> None:
        """A request begins."""
        self._runs[run.request.id] = run

    def discard(self, run: AnyRun) -> None:
        """A request is over."""
        self._runs.pop(run.request.id, None)
        self._commented.pop(run.request.id, None)

    def cut_keys(self, key_ids: frozenset[UUID]) -> None:
        """End every open request of keys that are no longer good."""
        for run in list(self._runs.values()):
            if run.request.principal.key_id in key_ids:
                run.cut(Cut.REVOKED)

    def cut_request(self, request_id: UUID, reason: Cut) -> None:
        """End one open request; one that is over is left alone."""
        run = self._runs.get(request_id)
        if run is not None:
            run.cut(reason)

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
        for run in list(self._runs.values()):
            self._checkpoint(run)
            self._watch(run, now)
            if run.request.prepared.stream and not run.answer.committed:
                self._keep_alive(run, now)

    def _checkpoint(self, run: AnyRun) -> None:
        if run.open_record is None or run.outcome is not None:
            return
        usage = run.usage
        if usage.total != run.answer.checkpointed:  # also down: a second attempt begins at nothing
            run.answer.checkpointed = usage.total
            self._meter.checkpoint(Checkpoint(run.request.id, usage))
            if run.routing.placement is not None:
                self._placer.progress(run.routing.placement, usage.output)

    def _watch(self, run: AnyRun, now: float) -> None:
        answer = run.answer
        if answer.reading_since and not answer.writing_since and answer.stream is not None:
            heard = answer.codec is not None and answer.codec.head is not None
            allowed_s = self._patience.idle_s if heard else self._patience.first_event_s
            if now - answer.reading_since > allowed_s:
                log.warning("engine silent for %.0f s, giving it up: request %s", allowed_s, run.request.id)
                answer.stream.abort()
        if answer.writing_since and now - answer.writing_since > self._patience.write_s:
            run.cut(Cut.SLOW_CLIENT)

    def _keep_alive(self, run: AnyRun, now: float) -> None:
        request = run.request
        since = self._commented.get(request.id, request.received_at + KEEP_ALIVE_AFTER_S - KEEP_ALIVE_EVERY_S)
        if now - since < KEEP_ALIVE_EVERY_S:
            return
        self._commented[request.id] = now
        task = asyncio.create_task(_comment(run))
        self._sends.add(task)
        task.add_done_callback(self._sends.discard)


async def _comment(run: AnyRun) -> None:
    """Tell a waiting client (and the proxies on the way) that the request is alive."""
    reply = run.request.reply
    if not reply.started:
        await reply.start(run.rate_headers)
    if run.outcome is None and not run.answer.committed:
        await reply.write(b": waiting\n\n" if run.routing.placement is None else b": working\n\n")
