"""The life of a request, top to bottom: rates, then money and place together, relay, settle (DESIGN §4)."""

import asyncio
from collections.abc import Callable
from typing import Generic
from uuid import UUID

from billing.records import HoldRequest, OpenRecord, Outcome
from core.errors import InvalidRequest, PenstockError, PermissionDenied, Unavailable
from core.tokens import NO_TOKENS
from gateway.estimate import Estimator
from gateway.live import LiveRuns
from gateway.ports import GrantT, Holds, Metering, Model, Models, Placer, Rates, Reply
from gateway.prefix import PromptBlocks, PromptHasher
from gateway.relay import Relay, released
from gateway.run import Run
from gateway.schemas.common import Prepared
from gateway.telemetry import Telemetry
from gateway.together import both_or_neither
from scheduler.wire import Placement, PlaceRequest
from tenants.principal import Principal


class Director(Generic[GrantT]):
    """Takes one validated request of one principal to its usage row. One per process; keeps no request's state."""

    def __init__(
        self,
        *,
        models: Models,
        rates: Rates[GrantT],
        holds: Holds,
        placer: Placer,
        prompts: PromptHasher,
        meter: Metering,
        relay: Relay,
        live: LiveRuns,
        estimator: Estimator,
        telemetry: Telemetry,
        now: Callable[[], float],
        region: str,
        queue_deadline_s: float,
    ) -> None:
        self._models = models
        self._rates = rates
        self._holds = holds
        self._placer = placer
        self._prompts = prompts
        self._meter = meter
        self._relay = relay
        self._live = live
        self._estimator = estimator
        self._telemetry = telemetry
        self._now = now
        self._region = region
        self._queue_deadline_s = queue_deadline_s

    async def handle(self, request_id: UUID, principal: Principal, prepared: Prepared, reply: Reply) -> None:
        """Run the request and answer through `reply`; raises the PenstockError that it ends with.

        Whatever happens, cancellation included, each thing acquired on the way is resolved exactly once: what the
        run holds is given back in `_settle`, which awaits nothing and so cannot be interrupted.
        """
        try:
            model = self._allowed_model(principal, prepared)
        except PenstockError as error:
            self._telemetry.refused(error.code)
            raise
        run: Run[GrantT] = Run(request_id, principal, prepared, model, reply, self._now())
        self._live.add(run)
        try:
            await self._admit(run)
            await self._money_and_place(run)
            self._open(run)
            await self._relay.run(run)
        except asyncio.CancelledError as cancelled:
            run.refusal = cancelled
            if run.cut_reason is None or run.task is None:
                raise  # the server itself is going down
            run.task.uncancel()
            raise run.cut_reason.error() from None
        except BaseException as error:
            run.refusal = error
            raise
        finally:
            run.task = None  # too late to be cut
            self._settle(run)
            self._live.discard(run)

    def _allowed_model(self, principal: Principal, prepared: Prepared) -> Model:
        """The model, if it exists, this key may use it and it can hold what is asked for."""
        model = self._models.resolve(prepared.model)
        if principal.allowed_models is not None and model.name not in principal.allowed_models:
            raise PermissionDenied(
                f"This key may not use the model '{model.name}'.", param="model", code="model_not_allowed"
            )
        if prepared.max_tokens >= model.context_len:
            raise InvalidRequest(
                f"max_tokens is {prepared.max_tokens:,}, but '{model.name}' holds {model.context_len:,} tokens of "
                "prompt and answer together; ask for fewer.",
                param="max_tokens",
                code="context_length_exceeded",
            )
        return model

    async def _admit(self, run: Run[GrantT]) -> None:
        """Rates of key, project and tenant. Raises RateLimited, or Unavailable when nothing could be metered."""
        if not self._meter.ready:
            raise Unavailable(
                "Usage cannot be recorded at the moment, so nothing is admitted.", retry_after_s=2.0
            )
        prepared, name = run.prepared, run.model.name
        run.input_estimate = self._estimator.input_tokens(name, len(prepared.prompt_text))
        run.output_estimate = self._estimator.output_tokens(name, prepared.max_tokens, prepared.choices)
        run.grant = await self._rates.acquire(
            str(run.request_id), run.principal, run.input_estimate, run.output_estimate
        )
        run.rated_at = self._now()

    async def _money_and_place(self, run: Run[GrantT]) -> None:
        """A hold and a replica, both or neither. Raises PaymentRequired, Refused or Unavailable."""
        hold, placement = await both_or_neither(
            self._holds.place(self._hold_request(run)),
            self._place(run),
            void=lambda hold: self._holds.void(hold.request_id),
            unplace=self._unplace,
        )
        run.hold, run.placement = hold, placement
        run.placed_at = self._now()

    async def place_again(self, run: Run[GrantT]) -> None:
        """Another replica after a failed attempt; money and rates stay as they are. Raises Refused."""
        run.placement = await self._place(run)
        run.placed_again(self._now())
        run.open_record = self._open_record(run)

    async def _place(self, run: Run[GrantT]) -> Placement:
        """A replica for the prompt as it begins. Raises Refused."""
        if run.blocks is None:
            run.blocks = await self._prompts.blocks(
                run.model.name,
                run.prepared,
                run.principal.cache_salt,
                reasoning="reasoning" in run.model.capabilities,
            )
        return await self._placer.place(self._place_request(run, run.blocks))

    def _unplace(self, placement: Placement) -> None:
        self._placer.release(released(placement, NO_TOKENS))

    def _open(self, run: Run[GrantT]) -> None:
        """Admitted: write the open line before anything is dispatched."""
        if run.hold is None:
            raise RuntimeError("a request is opened only once money is held")
        record = self._open_record(run)
        self._meter.open(record)
        run.open_record = record
        whole = run.prepared.max_tokens or run.model.max_output_tokens
        run.limit = min(run.hold.output_tokens, whole * run.prepared.choices)

    def _settle(self, run: Run[GrantT]) -> None:
        """Resolve all that the run holds, once, whichever step it got to. Awaits nothing."""
        usage = run.usage
        if run.open_record is not None:
            if run.outcome is None:
                run.outcome = _outcome_of(run)
            run.settled_at = run.settled_at or self._now()
            self._meter.settle(run.record(run.settled_at))
        elif run.hold is not None:
            self._holds.void(run.request_id)
        if run.placement is not None:
            failed = run.outcome is Outcome.ENGINE_FAILED
            self._placer.release(released(run.placement, usage, failed=failed))
        if run.grant is not None:
            if run.open_record is not None:
                self._rates.settle(run.grant, usage.input, usage.output)
            else:
                self._rates.refund(run.grant)
        if run.outcome in (Outcome.COMPLETED, Outcome.LENGTH):
            prepared = run.prepared
            self._estimator.learn(
                run.model.name, len(prepared.prompt_text), usage.input, usage.output, prepared.choices
            )
        self._telemetry.finished(run)

    def _hold_request(self, run: Run[GrantT]) -> HoldRequest:
        """Upper bounds in tokens; no tokenizer on this path."""
        prepared, principal, model = run.prepared, run.principal, run.model
        return HoldRequest(
            request_id=run.request_id,
            tenant_id=principal.tenant_id,
            project_id=principal.project_id,
            key_id=principal.key_id,
            model=model.name,
            tier=principal.tier,
            max_input_tokens=min(prepared.max_input_tokens, model.context_len * prepared.choices),
            max_output_tokens=prepared.max_tokens * prepared.choices,
            default_output_tokens=model.max_output_tokens * prepared.choices,
        )

    def _place_request(self, run: Run[GrantT], blocks: PromptBlocks) -> PlaceRequest:
        """Estimates and block hashes, never text; waits for what is left of the deadline."""
        waited_s = self._now() - run.received_at
        return PlaceRequest(
            request_id=str(run.request_id),
            tenant_id=str(run.principal.tenant_id),
            model=run.model.name,
            prompt_tokens=blocks.prompt_tokens or run.input_estimate,
            output_tokens=run.output_estimate,
            blocks=blocks.hashes,
            block_tokens=blocks.block_tokens,
            deadline_s=max(0.0, self._queue_deadline_s - waited_s),
            tier=run.principal.tier,
            weight=run.principal.share_percent / 100.0,
            exclude=run.excluded,
        )

    def _open_record(self, run: Run[GrantT]) -> OpenRecord:
        """What the usage row will say of the request, from what is known at dispatch."""
        hold, placement, principal = run.hold, run.placement, run.principal
        if hold is None or placement is None:
            raise RuntimeError("an open record needs a hold and a placement")
        return OpenRecord(
            request_id=run.request_id,
            tenant_id=principal.tenant_id,
            project_id=principal.project_id,
            key_id=principal.key_id,
            model=run.model.name,
            tier=principal.tier,
            region=self._region,
            price=hold.price,
            list_price=hold.list_price,
            admitted_at=hold.admitted_at,
            replica_id=placement.replica_id,
            boot_id=placement.boot_id,
            simulated=placement.simulated,
            stream=run.prepared.stream,
            max_input_tokens=run.prepared.max_input_tokens * run.prepared.choices,
        )


def _outcome_of(run: Run[GrantT]) -> Outcome:
    """The outcome of an admitted request that ended before the relay could name one."""
    if run.cut_reason is not None:
        return Outcome.CLIENT_CANCELLED
    if isinstance(run.refusal, asyncio.CancelledError):
        return Outcome.INTERRUPTED
    return Outcome.ENGINE_FAILED
