"""The life of a request, from admission to settlement, in the order in which it happens (docs/request-life.md)."""

import asyncio
import logging
from collections.abc import Callable
from typing import Generic
from uuid import UUID

from billing.metering.records import Outcome
from core.errors import EngineFailed, InvalidRequest, PenstockError, Refused, Unavailable
from gateway.admission import Admission
from gateway.context import AbortReason, AnyContext, Request, RequestContext
from gateway.open_requests import OpenRequests
from gateway.ports import ClientDisconnected, GrantT, Reply
from gateway.relay import ENGINE_FAILED_MESSAGE, Relay
from gateway.sandbox import Sandbox
from gateway.schemas.common import PreparedRequest
from gateway.settle import Settlement
from gateway.telemetry import Telemetry
from tenants.principal import Principal

MAX_ATTEMPTS = 2
"""Attempts per request, each on another replica."""

log = logging.getLogger(__name__)


class Director(Generic[GrantT]):
    """Takes validated requests to their usage rows. One per process; keeps no state of a request."""

    def __init__(
        self,
        admission: Admission[GrantT],
        relay: Relay,
        sandbox: Sandbox[GrantT],
        settlement: Settlement[GrantT],
        open_requests: OpenRequests,
        telemetry: Telemetry,
        now: Callable[[], float],
    ) -> None:
        """`now` returns monotonic seconds."""
        self._admission = admission
        self._relay = relay
        self._sandbox = sandbox
        self._settlement = settlement
        self._open_requests = open_requests
        self._telemetry = telemetry
        self._now = now

    async def handle(
        self, request_id: UUID, principal: Principal, prepared: PreparedRequest, reply: Reply
    ) -> None:
        """Run one request and write its answer to `reply`; that of a test key is answered without all this.

        Raises the PenstockError that the request ends with, ClientDisconnected, or CancelledError when the server
        shuts down. Everything that was acquired is released exactly once, in `Settlement.settle`, whichever step fails.
        """
        if principal.kind == "test":
            await self._sandbox.handle(request_id, principal, prepared, reply)
            return
        try:
            model = self._admission.resolve_model(principal, prepared)
            tier = self._admission.resolve_tier(principal, prepared, model)
        except PenstockError as error:
            self._telemetry.count_refusal(error.code)
            if not isinstance(error, (Unavailable, Refused)):
                self._admission.charge_invalid(principal)
            raise
        context: RequestContext[GrantT] = RequestContext(
            Request(request_id, principal, prepared, model, reply, self._now(), tier)
        )
        self._open_requests.add(context)
        try:
            await self._admission.acquire_rates(context)
            await self._admission.acquire_hold_and_replica(context)
            self._admission.open(context)
            while (failure := await self._attempt(context)) is not None:
                await self._move_to_other_replica(context, failure)
            await self._relay.finish(context)
        except asyncio.CancelledError as cancelled:
            context.error = cancelled
            if context.abort_reason in (None, AbortReason.SHUTDOWN) or context.task is None:
                _interrupt(context)
            if context.abort_reason is None or context.task is None:
                raise
            context.task.uncancel()
            raise context.abort_reason.error() from None
        except ClientDisconnected as gone:
            context.error = gone
            context.abort_reason = context.abort_reason or AbortReason.CLIENT_DISCONNECTED
            raise
        except BaseException as error:
            context.error = error
            raise
        finally:
            context.task = None  # it can no longer be aborted
            self._settlement.settle(context)
            self._open_requests.discard(context)

    async def _attempt(self, context: RequestContext[GrantT]) -> EngineFailed | None:
        """Relay one attempt. Returns the failure of the engine, or None after success.

        Raises InvalidRequest when the engine refuses the request itself.
        """
        try:
            await self._relay.attempt(context)
        except InvalidRequest:
            # A stream may have brought the answers to other prompts of the request; those are paid.
            codec, stream = context.answer.codec, context.request.prepared.stream
            told = stream and codec is not None and codec.content_started
            context.outcome = Outcome.CLIENT_CANCELLED if told else Outcome.ZERO_OUTPUT
            raise
        except EngineFailed as failure:
            return failure
        return None

    async def _move_to_other_replica(self, context: RequestContext[GrantT], failure: EngineFailed) -> None:
        """Prepare another attempt after `failure`.

        Raises EngineFailed when content was already sent, and when no attempts or no other replicas are left.
        """
        routing = context.routing
        replica_id = routing.placement.replica_id if routing.placement is not None else ""
        log.warning("attempt %d on %s failed: %s", routing.attempts, replica_id, failure.message)
        if not context.answer.committed and routing.attempts < MAX_ATTEMPTS:
            try:
                return await self._admission.acquire_other_replica(context)
            except Refused as refusal:
                log.warning("no other replica for %s: %s", context.request.id, refusal.message)
        context.outcome = Outcome.ENGINE_FAILED
        raise EngineFailed(ENGINE_FAILED_MESSAGE) from failure


def _interrupt(context: AnyContext) -> None:
    """Note that the server shuts down. A whole answer that is being sent does not arrive, so it is not completed."""
    if context.open_record is not None and not context.request.prepared.stream:
        context.outcome, context.usage_record = Outcome.INTERRUPTED, None
