"""Builds the records that billing and the scheduler get of a request, from its state."""

from billing.metering.records import HoldRequest, Labels, OpenRecord, Outcome, UsageRecord, label_lines
from core.errors import InvalidRequest
from core.tokens import TokenUsage
from gateway.context import AnyContext
from gateway.limits import MAX_ANSWER_BYTES, MAX_ANSWER_LOGPROBS, MAX_BYTES_PER_TOKEN
from gateway.ports import Model
from gateway.prefix import PromptBlocks
from gateway.prompt_batches import input_of_one, output_of_one
from gateway.schemas.common import PreparedRequest
from gateway.schemas.labels import ADAPTER_TAG
from scheduler.wire import Placement, PlaceRequest, Released


def hold_request(context: AnyContext) -> HoldRequest:
    """Return the hold to place: upper bounds in tokens, computed from bytes without a tokenizer."""
    request = context.request
    prepared, principal, model = request.prepared, request.principal, request.model
    longest = longest_answer(prepared, model)
    rest_of_context = longest >= model.context_len * prepared.choices  # to which engines keep by themselves
    named = prepared.max_tokens > 0 and not prepared.limit_yields
    bounded = prepared.endpoint == "embeddings" or named or rest_of_context or longest_fits(prepared, model)
    return HoldRequest(
        request_id=request.id,
        tenant_id=principal.tenant_id,
        project_id=principal.project_id,
        key_id=principal.key_id,
        model=model.name,
        tier=request.tier,
        max_input_tokens=min(prepared.max_input_tokens, model.context_len * prepared.choices),
        max_output_tokens=prepared.max_tokens * prepared.choices,
        default_output_tokens=longest,
        whole=prepared.in_one_piece and bounded and longest * MAX_BYTES_PER_TOKEN <= MAX_ANSWER_BYTES,
        labels=label_lines(labels_of(prepared, model)),
        adapter=model.adapter,
    )


def labels_of(prepared: PreparedRequest, model: Model) -> Labels | None:
    """Return the labels of the usage row: those that the request names, and its adapter, for reports and budgets."""
    if not model.adapter:
        return prepared.labels
    named = prepared.labels or Labels()
    return Labels(named.end_user, named.tags | {ADAPTER_TAG: model.adapter})


def longest_answer(prepared: PreparedRequest, model: Model) -> int:
    """Return the output tokens, over all choices, of the longest answer that the request may get.

    Without max_tokens these are the model's longest, at most the rest of its context, and in one piece no more than
    certainly can be kept in memory. Embeddings have none.
    """
    if prepared.endpoint == "embeddings":
        return 0
    tokens = (prepared.max_tokens or model.max_output_tokens) * prepared.choices
    if prepared.stream:
        return tokens
    if not prepared.max_tokens:
        tokens = min(tokens, MAX_ANSWER_BYTES // MAX_BYTES_PER_TOKEN)
    if prepared.logprobs_per_token:
        tokens = min(tokens, MAX_ANSWER_LOGPROBS // prepared.logprobs_per_token)
    return tokens


def longest_fits(prepared: PreparedRequest, model: Model) -> bool:
    """Whether the longest answer certainly fits beside the prompt, of which only an upper bound is known."""
    per_choice = longest_answer(prepared, model) // prepared.choices
    return prepared.max_input_tokens + per_choice <= model.context_len


def place_request(
    context: AnyContext, blocks: PromptBlocks, deadline_s: float, wake_deadline_s: float
) -> PlaceRequest:
    """Return what the scheduler places by: estimates and block hashes, no text.

    Of many prompts, the scheduler gets what its replica has of them at a time. `deadline_s`: seconds that the request
    may wait from now on, or `wake_deadline_s` when a replica has to wake first.
    """
    request = context.request
    principal, prepared = request.principal, request.prepared
    return PlaceRequest(
        request_id=request.id_text,
        tenant_id=principal.tenant_text,
        model=request.model.name,
        prompt_tokens=blocks.prompt_tokens or input_of_one(prepared, context.reserved.input_estimate),
        output_tokens=output_of_one(prepared, context.reserved.output_estimate),
        blocks=blocks.hashes,
        block_tokens=blocks.block_tokens,
        deadline_s=deadline_s,
        tier=request.tier,
        weight=principal.share_percent / 100.0,
        exclude=context.routing.excluded,
        regions=prepared.regions,
        gpus=prepared.gpus,
        wake_deadline_s=wake_deadline_s,
        adapter=request.model.adapter,
    )


def open_record(context: AnyContext, region: str) -> OpenRecord:
    """Return the open record: the facts of the usage row that are known at dispatch.

    `region`: where this process runs, for a replica that names none. Raises RuntimeError when the request has no hold
    or no placement.
    """
    request, hold, placement = context.request, context.reserved.hold, context.routing.placement
    if hold is None or placement is None:
        raise RuntimeError("an open record needs a hold and a placement")
    principal, prepared = request.principal, request.prepared
    embeds = prepared.endpoint == "embeddings"
    return OpenRecord(
        request_id=request.id,
        tenant_id=principal.tenant_id,
        project_id=principal.project_id,
        key_id=principal.key_id,
        model=request.model.name,
        tier=request.tier,
        region=placement.region or region,
        gpu=placement.gpu,
        price=hold.price,
        list_price=hold.list_price,
        admitted_at=hold.admitted_at,
        replica_id=placement.replica_id,
        boot_id=placement.boot_id,
        simulated=placement.simulated,
        stream=prepared.stream,
        max_input_tokens=prepared.max_input_tokens * prepared.choices_per_prompt,
        whole=hold.whole or embeds,  # of which nothing but the prompt is paid
        max_output_tokens=hold.output_tokens if hold.whole and not embeds else 0,
        earlier_attempts=context.routing.attempts,
        earlier_usage=context.routing.failed_usage,
        earlier_unbilled=tuple(context.routing.failed_unbilled),
        labels=labels_of(prepared, request.model),
    )


def usage_record(context: AnyContext, now: float) -> UsageRecord:
    """Return the usage record of an admitted request, with its counts at the monotonic instant `now`.

    Raises RuntimeError when the request is not admitted or has no outcome.
    """
    if context.open_record is None or context.outcome is None:
        raise RuntimeError("a usage record needs an admitted request with an outcome")
    answer, routing, placement = context.answer, context.routing, context.routing.placement
    received, first = context.request.received_at, answer.first_content_at
    queue_s = placement.queue_s if placement is not None else 0.0
    usage, parts = context.usage, routing.failed_unbilled
    received_none = context.outcome is Outcome.INTERRUPTED and not context.request.prepared.stream
    # billing/metering/adoption.py does the same after the death of a process.
    in_row = usage.prompt if received_none else usage
    # An engine that refuses a request has counted nothing, unless it may have generated the whole answer before, or has
    # answered other prompts.
    answered = context.reserved.whole or (answer.codec is not None and answer.codec.batch.first > 0)
    uncounted = isinstance(context.error, InvalidRequest) and not answered
    if placement is not None and routing.attempts and not uncounted:
        failed = context.outcome is Outcome.ENGINE_FAILED or isinstance(context.error, InvalidRequest)
        cause = "engine_failed" if failed else "cancelled_tail"
        parts = parts + context.unbilled_of_attempt(placement, usage, now, cause=cause, in_row=in_row)
    return UsageRecord(
        open=context.open_record,
        outcome=context.outcome,
        usage=in_row,
        attempts=max(1, routing.attempts),
        queue_us=int(queue_s * 1e6),
        ttft_us=int((first - received) * 1e6) if first else 0,
        duration_us=int((now - received) * 1e6),
        extra_unbilled=routing.failed_usage + (usage - in_row),
        unbilled=tuple(parts),
    )


def released(
    placement: Placement, usage: TokenUsage, *, failed: bool = False, dispatched: bool = True
) -> Released:
    """Return the release of a placement, with the counts that correct the scheduler's estimates.

    `failed`: the attempt failed because of the replica. `dispatched`: the request was sent to its engine.
    """
    return Released(
        placement.request_id,
        placement.replica_id,
        input_tokens=usage.input,
        cached_input_tokens=usage.cached_input,
        output_tokens=usage.output,
        failed=failed,
        dispatched=dispatched,
    )
