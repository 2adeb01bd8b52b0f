"""Settlement: the end of a request, whichever step it got to."""

import asyncio
from collections.abc import Callable
from typing import Generic

from billing.metering.records import Outcome
from gateway.estimate import Estimator
from gateway.ports import GrantT, Holds, Metering, Placer, Rates
from gateway.records import released, usage_record
from gateway.run import AnyRun, Run
from gateway.telemetry import Telemetry


class Settlement(Generic[GrantT]):
    """Releases everything that a request holds. One per process; keeps no request's state."""

    def __init__(
        self,
        *,
        rates: Rates[GrantT],
        holds: Holds,
        placer: Placer,
        meter: Metering,
        estimator: Estimator,
        telemetry: Telemetry,
        now: Callable[[], float],
    ) -> None:
        """`now` gives monotonic seconds."""
        self._rates = rates
        self._holds = holds
        self._placer = placer
        self._meter = meter
        self._estimator = estimator
        self._telemetry = telemetry
        self._now = now

    def settle(self, run: Run[GrantT]) -> None:
        """Write the usage record or void the hold, release placement and rates, and count the request.

        To be called once per request. Awaits nothing, so that no cancellation can interrupt it.
        """
        usage, reserved = run.usage, run.reserved
        if run.open_record is not None:
            if run.outcome is None:
                run.outcome = _outcome_of(run)
            run.settled_at = run.settled_at or self._now()
            self._meter.settle(usage_record(run, run.settled_at))
        elif reserved.hold is not None:
            self._holds.void(run.request.id)
        if run.routing.placement is not None:
            failed = run.outcome is Outcome.ENGINE_FAILED
            self._placer.release(released(run.routing.placement, usage, failed=failed))
        if reserved.grant is not None:
            if run.open_record is not None:
                self._rates.settle(reserved.grant, usage.input, usage.output)
            else:
                self._rates.refund(reserved.grant)
        if run.outcome in (Outcome.COMPLETED, Outcome.LENGTH):
            prepared = run.request.prepared
            self._estimator.learn(
                run.request.model.name, len(prepared.prompt_text), usage.input, usage.output, prepared.choices
            )
        self._telemetry.finished(run)


def _outcome_of(run: AnyRun) -> Outcome:
    """The outcome of an admitted request that ended before the relay could name one."""
    if run.cut_reason is not None:
        return Outcome.CLIENT_CANCELLED
    if isinstance(run.error, asyncio.CancelledError):
        return Outcome.INTERRUPTED
    return Outcome.ENGINE_FAILED
