"""Admission: the steps before a request is dispatched, and the change to another replica after a failed attempt."""

from collections.abc import Callable
from typing import Generic

from billing.metering.records import Checkpoint
from core.errors import InvalidRequest, RequestTooLarge, Unavailable
from core.tokens import NO_TOKENS
from gateway.abilities import check_abilities, check_embeddings_size, permitted_model
from gateway.acquire_both import acquire_both
from gateway.context import RequestContext
from gateway.estimate import Estimator
from gateway.limits import MAX_ANSWER_LOGPROBS
from gateway.places import restrict_places
from gateway.ports import Availability, GrantT, Holds, Metering, Model, Models, Prices, Rates, Scheduler
from gateway.prefix import PromptHasher
from gateway.records import hold_request, longest_answer, open_record, place_request, released
from gateway.schemas.common import PreparedRequest
from gateway.service_tier import tier_of
from gateway.time_budget import time_to_place_again_s
from scheduler.wire import Placement
from tenants.principal import Principal


class Admission(Generic[GrantT]):
    """Runs the steps before dispatch. One per process; keeps no state of a request."""

    def __init__(
        self,
        *,
        models: Models,
        prices: Prices,
        rates: Rates[GrantT],
        holds: Holds,
        scheduler: Scheduler,
        availability: Availability,
        prompts: PromptHasher,
        meter: Metering,
        estimator: Estimator,
        now: Callable[[], float],
        region: str,
        queue_deadline_s: float,
        wake_deadline_s: Callable[[str], float],
    ) -> None:
        """`now` returns monotonic seconds. `queue_deadline_s` bounds the wait for a replica, from receipt;
        `wake_deadline_s`, of a tier, that for a model none of whose replicas is awake and that has none of its own."""
        self._models = models
        self._prices = prices
        self._rates = rates
        self._holds = holds
        self._scheduler = scheduler
        self._availability = availability
        self._prompts = prompts
        self._meter = meter
        self._estimator = estimator
        self._now = now
        self._region = region
        self._queue_deadline_s = queue_deadline_s
        self._wake_deadline_s = wake_deadline_s

    def resolve_model(self, principal: Principal, prepared: PreparedRequest) -> Model:
        """Return the model that the request names.

        Raises ModelNotFound, Unavailable when the platform is in maintenance or the list of models is too old,
        PermissionDenied when the key may not use
        the model, the regions or the GPUs, RequestTooLarge when the body is longer than the model's context can be or
        the answer cannot be held, InvalidRequest when max_tokens does not fit into the context, UnsupportedField when
        the model is not able to do what is asked for, and Refused when no replica will serve the model within the
        deadline.
        """
        self._models.check_serving()
        model = permitted_model(self._models, principal, prepared)
        if prepared.max_tokens >= model.context_len and prepared.limit_yields:
            prepared.max_tokens = model.context_len  # the hold needs to cover no more
        elif prepared.max_tokens >= model.context_len:
            raise InvalidRequest(
                f"max_tokens is {prepared.max_tokens:,}, but '{model.name}' holds {model.context_len:,} tokens of "
                "prompt and answer together; ask for fewer.",
                param="max_tokens",
                code="context_length_exceeded",
            )
        restrict_places(principal, prepared)
        check_abilities(prepared, model)
        check_embeddings_size(prepared, model)
        longest = longest_answer(prepared, model) // prepared.choices
        if prepared.min_tokens > longest:
            raise InvalidRequest(
                f"min_tokens is {prepared.min_tokens:,}, but an answer has at most {longest:,} tokens here; ask for "
                "fewer, or set 'max_tokens' as high.",
                param="min_tokens",
            )
        logprobs = prepared.max_tokens * prepared.choices * prepared.logprobs_per_token
        if not prepared.stream and logprobs > MAX_ANSWER_LOGPROBS:
            raise RequestTooLarge(
                f"n x max_tokens x (1 + top_logprobs) makes {logprobs:,} log-probabilities; an answer in one piece has "
                f"at most {MAX_ANSWER_LOGPROBS:,}. Ask for fewer, or for a stream.",
                param="top_logprobs",
                code="answer_too_large",
            )
        self._availability.check(model.name)
        return model

    def resolve_tier(self, principal: Principal, prepared: PreparedRequest, model: Model) -> str:
        """Return the tier that the request runs in. Raises InvalidRequest for one that it may not have."""
        return tier_of(
            prepared.service_tier,
            principal.tier,
            lambda: self._prices.tiers(principal.tenant_id, model.name, model.adapter),
            principal.highest_tier,
        )

    def charge_invalid(self, principal: Principal) -> None:
        """Count a request that names no usable model in the key's request rate."""
        self._rates.charge_invalid(principal)

    async def acquire_rates(self, context: RequestContext[GrantT]) -> None:
        """Reserve one request and its estimated tokens within the limits of key, project and tenant.

        Raises RateLimited, or Unavailable when usage cannot be recorded.
        """
        if not self._meter.ready:
            raise Unavailable(
                "Usage cannot be recorded at the moment, so nothing is admitted.", retry_after_s=2.0
            )
        request, reserved = context.request, context.reserved
        prepared, principal = request.prepared, request.principal
        reserved.input_estimate, reserved.output_estimate = self._estimator.estimate(
            principal.tenant_text,
            request.model.name,
            prepared.prompt_bytes,
            prepared.max_tokens,
            prepared.choices,
        )
        reserved.output_estimate = max(reserved.output_estimate, prepared.min_tokens * prepared.choices)
        reserved.grant = await self._rates.acquire(
            request.id_text, principal, reserved.input_estimate, reserved.output_estimate
        )
        reserved.granted_at = self._now()

    async def acquire_hold_and_replica(self, context: RequestContext[GrantT]) -> None:
        """Place a hold and acquire a replica, side by side, both or neither.

        Raises PaymentRequired or one of its subclasses, Refused, or Unavailable.
        """
        hold, placement = await acquire_both(
            self._holds.place(hold_request(context)),
            self._place(context, self._queue_deadline_s, since=context.request.received_at),
            void=lambda hold: self._holds.void(hold.request_id),
            unplace=lambda placement: self._scheduler.release(
                released(placement, NO_TOKENS, dispatched=False)
            ),
        )
        context.reserved.hold, context.routing.placement = hold, placement
        context.routing.placed_at = self._now()

    def open(self, context: RequestContext[GrantT]) -> None:
        """Write the open record into the usage spool. From then on the request is admitted and gets a usage row.

        Raises RuntimeError when the request has no hold or no placement.
        """
        hold = context.reserved.hold
        if hold is None:
            raise RuntimeError("a request is opened only after its hold is placed")
        record = open_record(context, self._region)
        self._meter.open(record)
        context.open_record = record
        longest = longest_answer(context.request.prepared, context.request.model)
        context.reserved.output_limit = min(hold.output_tokens, longest)
        context.reserved.whole = record.whole

    async def acquire_other_replica(self, context: RequestContext[GrantT]) -> None:
        """Release the replica of the failed attempt and acquire another one. Hold and rates stay as they are.

        The open record is written again, so that a process that dies during the next attempt leaves its tokens to the
        engine that counts them. Raises Refused when no other replica takes the request before its deadline, and
        Unavailable when the usage spool cannot be written.
        """
        usage, now = context.usage, self._now()
        failed = context.record_failed_attempt(now)
        if context.answer.checkpointed_tokens:
            # A process that dies while the request waits must not bill what the failed attempt counted.
            context.answer.checkpointed_tokens = 0
            self._meter.checkpoint(Checkpoint(context.request.id, NO_TOKENS))
        self._scheduler.release(released(failed, usage, failed=True))
        deadline_s = time_to_place_again_s(context, failed, now)
        placement = await self._place(context, deadline_s, since=now)
        context.begin_next_attempt(placement, self._now())
        record = open_record(context, self._region)
        try:
            self._meter.open(record)
        except Unavailable:
            # No engine was sent anything: `Settlement.settle` must not release this one as if it had failed.
            context.routing.placement = None
            self._scheduler.release(released(placement, NO_TOKENS, dispatched=False))
            raise
        context.open_record = record

    async def _place(self, context: RequestContext[GrantT], deadline_s: float, *, since: float) -> Placement:
        """Acquire a replica from the scheduler within `deadline_s` of the instant `since`. Raises Refused."""
        request, routing = context.request, context.routing
        if routing.blocks is None:
            routing.blocks = await self._prompts.blocks(
                request.model.name,
                request.prepared,
                request.principal.cache_salt + request.model.adapter,
                reasoning="reasoning" in request.model.capabilities,
            )
        spent_s = self._now() - since
        left_s = max(0.0, deadline_s - spent_s)
        own_s = request.model.wake_deadline_s
        wake_s = self._wake_deadline_s(request.tier) if own_s is None else own_s
        wake_left_s = max(0.0, wake_s - spent_s)
        return await self._scheduler.place(place_request(context, routing.blocks, left_s, wake_left_s))
