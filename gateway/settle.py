"""Settlement: releases what a request holds, whichever step it has reached."""

import asyncio
from collections.abc import Callable
from typing import Generic

from billing.metering.records import Outcome, UsageRecord
from core.errors import EngineFailed, Refused, Unavailable
from gateway.context import AbortReason, AnyContext, RequestContext
from gateway.estimate import Estimator
from gateway.ports import GrantT, Holds, Metering, Rates, Scheduler
from gateway.records import released, usage_record
from gateway.telemetry import Telemetry


class Settlement(Generic[GrantT]):
    """Settles requests. One per process; keeps no state of a request."""

    def __init__(
        self,
        *,
        rates: Rates[GrantT],
        holds: Holds,
        scheduler: Scheduler,
        meter: Metering,
        estimator: Estimator,
        telemetry: Telemetry,
        now: Callable[[], float],
    ) -> None:
        """`now` returns monotonic seconds."""
        self._rates = rates
        self._holds = holds
        self._scheduler = scheduler
        self._meter = meter
        self._estimator = estimator
        self._telemetry = telemetry
        self._now = now

    def settle(self, context: RequestContext[GrantT]) -> None:
        """Write the usage record or void the hold, release placement and rates, and write metrics and traces.

        Must be called once per request. It awaits nothing, so that no cancellation can interrupt it.
        """
        usage, reserved = context.usage, context.reserved
        record: UsageRecord | None = None
        if context.open_record is not None:
            if context.outcome is None:
                context.outcome = _outcome_of(context)
            context.settled_at = context.settled_at or self._now()
            record = context.usage_record or usage_record(context, context.settled_at)
            self._meter.settle(record)
        elif reserved.hold is not None:
            self._holds.void(context.request.id)
        dispatched = context.routing.attempts > 0
        stopped = context.abort_reason is AbortReason.SHUTDOWN
        if context.routing.placement is not None and not context.routing.released:
            failed = context.outcome is Outcome.ENGINE_FAILED
            self._scheduler.release(
                released(context.routing.placement, usage, failed=failed, dispatched=dispatched)
            )
        if reserved.grant is not None:
            if dispatched:
                # An engine may have worked on a prompt that it has not counted: the estimate stays charged then.
                self._rates.settle(reserved.grant, usage.input or reserved.input_estimate, usage.output)
            elif isinstance(context.error, (Refused, Unavailable)) or stopped:
                self._rates.refund(reserved.grant)
            else:
                # Without credit, or given up by its client: the request counts, its tokens do not.
                self._rates.settle(reserved.grant, 0, 0)
        if context.outcome in (Outcome.COMPLETED, Outcome.LENGTH):
            prepared = context.request.prepared
            self._estimator.learn(
                context.request.principal.tenant_text,
                context.request.model.name,
                prepared.prompt_bytes,
                usage.input,
                usage.output,
                prepared.choices,
            )
        self._telemetry.record(context)
        if record is not None:
            context.request.reply.settled(record)


def _outcome_of(context: AnyContext) -> Outcome:
    """The outcome of an admitted request that ended before the relay set one.

    An error of our own is not charged, except for what was delivered before it.
    """
    if context.abort_reason not in (None, AbortReason.SHUTDOWN):
        return Outcome.CLIENT_CANCELLED
    delivered = context.answer.committed and context.request.reply.started
    if isinstance(context.error, asyncio.CancelledError) or (
        delivered and context.request.prepared.stream and not isinstance(context.error, EngineFailed)
    ):
        return Outcome.INTERRUPTED
    return Outcome.ENGINE_FAILED
