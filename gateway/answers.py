"""The parts of an answer that the gateway writes itself: usage with cost and outcome, final events, and errors."""

from collections.abc import Sequence
from typing import Any

import msgspec

from billing.metering.records import UsageRecord
from core.errors import PenstockError
from core.money import pico_to_usd
from core.tokens import TokenUsage
from gateway.ports import Headers
from gateway.service_tier import ECHOED
from gateway.sse import DONE, ChunkHead

_OBJECTS = {"chat": "chat.completion.chunk", "text": "text_completion"}


def usage_object(usage: TokenUsage, cost_usd: str) -> dict[str, Any]:
    """Return OpenAI's usage object with the member `cost`: the number `cost_usd`, exact decimal dollars."""
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.total,
        "prompt_tokens_details": {"cached_tokens": usage.cached_input},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
        "cost": msgspec.Raw(cost_usd.encode()),  # as text, since a float would round it
    }


def billing_object(record: UsageRecord, cost_usd: str) -> dict[str, Any]:
    """Return the `penstock` member of an answer: how the request was billed."""
    return {
        "request_id": str(record.open.request_id),
        "outcome": record.outcome.value,
        "cost_usd": cost_usd,
        "price_version": record.open.price.id,
        "simulated": record.open.simulated,
        "region": record.open.region,
        "gpu": record.open.gpu or None,
        "attempts": record.attempts,
    }


def final_events(
    endpoint: str,
    first_chunk: ChunkHead | None,
    record: UsageRecord,
    *,
    fingerprint: str,
    truncated: bool,
    include_usage: bool,
    unfinished: Sequence[int],
) -> bytes:
    """Return the last events of a stream.

    These are a `length` finish of the `unfinished` choices (by index) when the gateway `truncated` the stream, the
    usage when the client asked for it, and [DONE]. `endpoint` is chat or text; `first_chunk` gives the id, object and
    time of the events, and is None when the engine sent no chunk; `fingerprint` is the engine's, empty when not known.
    """
    events: list[bytes] = []
    shell = {
        "id": first_chunk.id if first_chunk is not None else "",
        "object": (first_chunk.object if first_chunk is not None else "") or _OBJECTS[endpoint],
        "created": first_chunk.created if first_chunk is not None else 0,
        "model": record.open.model,
        "service_tier": ECHOED.get(record.open.tier),
    }
    if truncated:
        part: dict[str, Any] = {"delta": {}} if endpoint == "chat" else {"text": ""}
        ends = [{"index": i, **part, "logprobs": None, "finish_reason": "length"} for i in unfinished]
        events.append(_event({**shell, "choices": ends}))
    if include_usage:
        cost_usd = pico_to_usd(record.cost)
        served = {"system_fingerprint": fingerprint} if fingerprint else {}
        usage = usage_object(record.usage, cost_usd)
        billing = billing_object(record, cost_usd)
        events.append(_event({**shell, "choices": [], **served, "usage": usage, "penstock": billing}))
    events.append(DONE)
    return b"".join(events)


def whole_answer(
    answer: dict[str, Any], record: UsageRecord, *, truncated: bool, fingerprint: str = ""
) -> tuple[bytes, Headers]:
    """Return body and headers of an answer that is not streamed: the engine's `answer`, our usage, cost and outcome.

    Unfinished choices of a `truncated` answer finish with `length`.
    """
    cost_usd = pico_to_usd(record.cost)
    for choice in answer["choices"]:
        if truncated and choice["finish_reason"] is None:
            choice["finish_reason"] = "length"
    if fingerprint:
        answer["system_fingerprint"] = fingerprint
    answer["usage"] = usage_object(record.usage, cost_usd)
    answer["penstock"] = billing_object(record, cost_usd)
    answer["service_tier"] = ECHOED.get(record.open.tier)
    return msgspec.json.encode(answer), whole_headers(record)


def whole_headers(record: UsageRecord) -> Headers:
    """The headers of an answer that is not streamed: cost, outcome and tokens."""
    return [
        (b"x-penstock-cost-usd", pico_to_usd(record.cost).encode()),
        (b"x-penstock-outcome", record.outcome.value.encode()),
        (b"x-penstock-input-tokens", b"%d" % record.usage.input),
        (b"x-penstock-cached-input-tokens", b"%d" % record.usage.cached_input),
        (b"x-penstock-output-tokens", b"%d" % record.usage.output),
    ]


def error_body(error: PenstockError, kind: str) -> dict[str, Any]:
    """Return OpenAI's error object with `kind` as its `type`. `details` stand beside OpenAI's four members."""
    body: dict[str, Any] = {"message": error.message, "type": kind, "param": error.param, "code": error.code}
    if error.details:
        body["details"] = error.details
    return {"error": body}


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(document) + b"\n\n"
