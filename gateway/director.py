"""The life of a request, top to bottom (DESIGN §4, docs/request-life.md)."""

import asyncio
import logging
from collections.abc import Callable
from typing import Generic
from uuid import UUID

from billing.metering.records import Outcome
from core.errors import EngineFailed, InvalidRequest, PenstockError, Refused
from gateway.admission import Admission
from gateway.live import LiveRuns
from gateway.ports import GrantT, Reply
from gateway.relay import ENGINE_FAILED_MESSAGE, Relay
from gateway.run import Request, Run
from gateway.schemas.common import Prepared
from gateway.settle import Settlement
from gateway.telemetry import Telemetry
from tenants.principal import Principal

MAX_ATTEMPTS = 2
"""Replicas that a request is tried on."""

log = logging.getLogger(__name__)


class Director(Generic[GrantT]):
    """Takes one validated request of one principal to its usage row. One per process; keeps no request's state."""

    def __init__(
        self,
        admission: Admission[GrantT],
        relay: Relay,
        settlement: Settlement[GrantT],
        live: LiveRuns,
        telemetry: Telemetry,
        now: Callable[[], float],
    ) -> None:
        """`now` gives monotonic seconds."""
        self._admission = admission
        self._relay = relay
        self._settlement = settlement
        self._live = live
        self._telemetry = telemetry
        self._now = now

    async def handle(self, request_id: UUID, principal: Principal, prepared: Prepared, reply: Reply) -> None:
        """Run the request and answer through `reply`.

        Raises the PenstockError that the request ends with, or CancelledError when the server goes down. Whatever
        happens, each thing that was acquired is released exactly once, in `Settlement.settle`.
        """
        try:
            model = self._admission.resolve_model(principal, prepared)
        except PenstockError as error:
            self._telemetry.refused(error.code)
            raise
        run: Run[GrantT] = Run(Request(request_id, principal, prepared, model, reply, self._now()))
        self._live.add(run)
        try:
            await self._admission.acquire_rates(run)
            await self._admission.acquire_hold_and_replica(run)
            self._admission.open(run)
            while (failure := await self._attempt(run)) is not None:
                await self._move_to_other_replica(run, failure)
            await self._relay.finish(run)
        except asyncio.CancelledError as cancelled:
            run.error = cancelled
            if run.cut_reason is None or run.task is None:
                raise  # the server itself is going down
            run.task.uncancel()
            raise run.cut_reason.error() from None
        except BaseException as error:
            run.error = error
            raise
        finally:
            run.task = None  # too late to be cut
            self._settlement.settle(run)
            self._live.discard(run)

    async def _attempt(self, run: Run[GrantT]) -> EngineFailed | None:
        """Relay one attempt and return the failure of its engine. Raises InvalidRequest when the engine refuses it."""
        try:
            await self._relay.attempt(run)
        except InvalidRequest:
            run.outcome = Outcome.ZERO_OUTPUT
            raise
        except EngineFailed as failure:
            return failure
        return None

    async def _move_to_other_replica(self, run: Run[GrantT], failure: EngineFailed) -> None:
        """Prepare another attempt. Raises EngineFailed when the client has content, or attempts or replicas run out."""
        routing = run.routing
        replica_id = routing.placement.replica_id if routing.placement is not None else ""
        log.warning("attempt %d on %s failed: %s", routing.attempts, replica_id, failure.message)
        if not run.answer.committed and routing.attempts < MAX_ATTEMPTS:
            try:
                return await self._admission.acquire_other_replica(run)
            except Refused as refusal:
                log.warning("no other replica for %s: %s", run.request.id, refusal.message)
        run.outcome = Outcome.ENGINE_FAILED
        raise EngineFailed(ENGINE_FAILED_MESSAGE) from failure
