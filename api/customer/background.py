"""Responses in the background: requests whose client does not wait, run by the same director as every other request.

Their rows are in PostgreSQL (gateway/dialects/responses/running.py), the events of their streams in Redis
(gateway/dialects/responses/events.py), so that each process can read and cancel them.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import msgspec

from api import errors
from api.customer.background_reply import BackgroundReply
from core.errors import EngineFailed, PenstockError, RateLimited, UnsupportedField
from core.supervise import supervise
from gateway.context import AbortReason
from gateway.dialects.responses.events import ResponseEvents
from gateway.dialects.responses.running import LEASE_S, Look, RunningResponses
from gateway.dialects.responses.store import Kept, unavailable
from gateway.dialects.responses.translation import Responses
from gateway.dialects.responses.unbroken import FAILURES
from gateway.director import Director
from gateway.open_requests import OpenRequests
from gateway.schemas.common import PreparedRequest
from gateway.sse import DONE
from gateway.telemetry import Telemetry
from tenants.principal import Principal

LOOK_EVERY_S = 0.5
"""Seconds between two looks at the rows of running responses: how long a cancellation takes to be seen."""
RENEW_EVERY_S = LEASE_S / 6
"""Seconds between two renewals."""
REFUSAL_WAIT_S = 1.0
"""Seconds in which a refusal is still an HTTP error; what is refused later, for example in the queue, has failed."""
POLL_S = 0.005
"""Seconds between two looks whether a request is placed. Polled, so that other requests pay for no hook."""
CUT_S = 10.0
"""Seconds for responses that were cut to be ended."""
MAX_STORED_BYTES = 16 * 1024 * 1024
"""Bytes of the object of a response in the background. A longer one, which log-probabilities can make, has failed."""

log = logging.getLogger(__name__)


class Run:
    """One response that this process runs."""

    def __init__(self, request_id: UUID, principal: Principal, reply: BackgroundReply) -> None:
        self.request_id = request_id
        self.principal = principal
        self.reply = reply
        self.task: asyncio.Task[None] | None = None
        self.handled = False
        """Whether the director has settled it; its end is being stored."""
        self.answered = False
        """Whether its client has been told that it is queued."""
        self.refusal: PenstockError | None = None
        """The error that its client gets instead."""
        self.begun = False
        """Whether its engine has begun, as far as its row says."""
        self.cancelled = False
        """Whether it was aborted because its client has cancelled or deleted it, or its row was given up."""


class BackgroundResponses:
    """Starts responses in the background and takes them to their end. One per process."""

    def __init__(
        self,
        director: Director[Any],
        open_requests: OpenRequests,
        rows: RunningResponses,
        events: ResponseEvents,
        telemetry: Telemetry,
        *,
        available: bool,
        drain_s: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`available`: whether the operator allows them. `drain_s`: seconds they may take at the end of the process."""
        self._director = director
        self._open_requests = open_requests
        self._rows = rows
        self._events = events
        self._telemetry = telemetry
        self._available = available
        self._drain_s = drain_s
        self._now = now
        self._translations = Responses(time.time)
        self._runs: dict[UUID, Run] = {}
        self._renewed_at = now()
        self._work = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start to look after what runs."""
        await self._events.start()
        self._watch = supervise("background-responses", self._look_after)

    async def close(self) -> None:
        """Let what runs end within `drain_s`, cut the rest, and stop. The server has closed its connections before."""
        if not await self._ended(self._drain_s):
            self._open_requests.abort_all(AbortReason.SHUTDOWN)
            await self._ended(CUT_S)
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await self._events.close()
        await self._rows.close()

    @property
    def running(self) -> int:
        """How many responses run in this process."""
        return len(self._runs)

    async def _ended(self, seconds: float) -> bool:
        tasks = [run.task for run in self._runs.values() if run.task is not None]
        return not tasks or not (await asyncio.wait(tasks, timeout=seconds))[1]

    async def begin(
        self, request_id: UUID, principal: Principal, prepared: PreparedRequest
    ) -> dict[str, Any]:
        """Start a response and return its object, which is queued.

        Raises the error that refuses it within REFUSAL_WAIT_S, UnsupportedField when the operator or the project allows
        none, and RateLimited when too many run.
        """
        if not self._available:
            raise UnsupportedField(
                "Responses in the background are switched off here; ask for a stream.",
                code="not_available",
                param="background",
            )
        if not self._rows.allowed(principal):
            raise UnsupportedField(
                "This project stores no responses, and one in the background has to be stored. Ask for a stream, use a "
                "key of another project, or ask an owner of your organisation to change 'responses_kept_days'.",
                code="not_available",
                param="background",
            )
        response = self._translations.begin(request_id, prepared)
        known, prepared.dialect_fields = prepared.dialect_fields, {}
        queued, document = response.queue(), response.document("queued")
        kept = Kept(known["previous"], known["input"])
        try:
            await self._rows.begin(principal, request_id, kept, msgspec.json.encode(document))
        except FAILURES as error:
            log.warning("response %s could not be stored: %r", request_id, error)
            raise unavailable() from None
        except RateLimited as refused:
            self._telemetry.count_refusal(refused.code)
            raise
        reply = BackgroundReply(response, self._events.open(request_id) if prepared.stream else None)
        reply.record(queued)
        run = self._runs[request_id] = Run(request_id, principal, reply)
        run.task = asyncio.create_task(self._run(run, prepared), name=f"response {request_id}")
        self._work.set()
        await self._until_placed(run)
        if run.refusal is not None:
            raise run.refusal
        run.answered = True
        return document

    async def _until_placed(self, run: Run) -> None:
        """Wait until a request is placed or refused, at most REFUSAL_WAIT_S."""
        until = self._now() + REFUSAL_WAIT_S
        while self._now() < until and run.refusal is None and not run.handled:
            context = self._open_requests.find(run.request_id)
            if context is not None and context.routing.placement is not None:
                return
            await asyncio.sleep(POLL_S)

    async def _run(self, run: Run, prepared: PreparedRequest) -> None:
        """Take one response to its end."""
        try:
            failure = await self._handle(run, prepared)
            run.handled = True
            if failure is not None and not run.answered:
                run.refusal = failure
                await self._discard(run)
            else:
                await self._end(run, failure)
        except Exception:  # its row is not renewed any more, so it has failed within LEASE_S
            log.exception("response %s ended with an unexpected error", run.request_id)
        finally:
            del self._runs[run.request_id]
            if run.reply.log is not None:
                run.reply.log.end()

    async def _handle(self, run: Run, prepared: PreparedRequest) -> PenstockError | None:
        """Run the request, and return the error that it ended with."""
        try:
            await self._director.handle(run.request_id, run.principal, prepared, run.reply)
        except PenstockError as error:
            return error
        except asyncio.CancelledError:
            if not run.cancelled or run.task is None:
                raise
            run.task.uncancel()
        except Exception:
            log.exception("request %s failed with an unexpected error", run.request_id)
            return errors.INTERNAL
        return None

    async def _discard(self, run: Run) -> None:
        try:
            await self._rows.discard(run.principal, run.request_id)
        except FAILURES as error:
            log.warning("the row of refused response %s is left: %r", run.request_id, error)
        await self._events.delete(run.request_id)

    async def _end(self, run: Run, failure: PenstockError | None) -> None:
        """Store the end of a response, then tell it to those who read its stream."""
        response = run.reply.response
        if run.cancelled:
            run.reply.record(response.cancel())
            tail, document = b"", response.document("cancelled")
        else:
            tail, document = self._ending(run, failure)
        packed = msgspec.json.encode(document)
        if len(packed) > MAX_STORED_BYTES:
            tail, packed = b"", msgspec.json.encode(_too_long(document))
        cancelled = msgspec.json.encode(
            {**document, "status": "cancelled", "completed_at": None, "error": None}
        )
        stored = await self._store(run, packed, cancelled)
        if stored is None:
            await self._events.delete(run.request_id)
        elif not stored:
            run.reply.record(tail)

    def _ending(self, run: Run, failure: PenstockError | None) -> tuple[bytes, dict[str, Any]]:
        """The last events and the object of a response that was not cancelled."""
        response = run.reply.response
        if failure is None and not run.reply.complete:
            failure = EngineFailed("The answer has ended without a reason.", code="internal_error")
        if failure is None:
            return response.finish(stored=True).removesuffix(DONE), response.response(stored=True)
        status, _ = errors.status_of(failure)
        tail = response.fail(status, failure).removesuffix(DONE)
        return tail, response.failed(status, failure)

    async def _store(self, run: Run, document: bytes, cancelled: bytes) -> bool | None:
        """Store the end, also when PostgreSQL is away for less than the lease.

        Returns what `RunningResponses.end` does.
        """
        until = self._now() + LEASE_S
        while True:
            try:
                return await self._rows.end(run.principal, run.request_id, document, cancelled)
            except FAILURES as error:
                log.warning("the end of response %s could not be stored: %r", run.request_id, error)
                if self._now() >= until:
                    return None
            await asyncio.sleep(1.0)

    async def _look_after(self) -> None:
        while True:
            if not self._runs:
                self._work.clear()
                await self._work.wait()
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                await self._look()
            except FAILURES as error:
                log.warning("the rows of running responses cannot be read or written: %r", error)

    async def _look(self) -> None:
        """Look at every running response once: cancelled, given up, begun; and renew what is still run."""
        runs = list(self._runs.values())
        if not runs:
            return
        rows = await self._rows.look([run.request_id for run in runs])
        for run in runs:
            self._abort_if_asked(run, rows.get(run.request_id))
        begun = [run for run in runs if not run.begun and self._has_begun(run)]
        for run in begun:
            run.reply.record(run.reply.response.progress())
            run.begun = True
        if begun:
            await self._rows.mark_begun([run.request_id for run in begun])
        if self._now() - self._renewed_at >= RENEW_EVERY_S:
            await self._rows.renew([run.request_id for run in runs])
            self._renewed_at = self._now()

    def _has_begun(self, run: Run) -> bool:
        context = self._open_requests.find(run.request_id)
        return context is not None and context.routing.attempts > 0 and not run.handled

    def _abort_if_asked(self, run: Run, row: Look | None) -> None:
        """End a request whose row asks for it. Its bill is that of a client that leaves, or of our own end."""
        if run.handled or (row is not None and row.runs and not row.cancel):
            return
        given_up = row is not None and not row.runs
        reason = AbortReason.SHUTDOWN if given_up else AbortReason.CLIENT_DISCONNECTED
        if run.principal.kind == "test" and run.task is not None and not run.cancelled:
            run.task.cancel()  # no open request: nothing was admitted
        run.cancelled = True
        self._open_requests.abort_request(run.request_id, reason)


def _too_long(document: dict[str, Any]) -> dict[str, Any]:
    """The object of a response that is too long to be stored."""
    message = f"The response has more than {MAX_STORED_BYTES:,} bytes and is not stored; ask for a stream, or for less."
    failed = {"status": "failed", "error": {"code": "server_error", "message": message}}
    return {**document, **failed, "output": [], "completed_at": None, "incomplete_details": None}
