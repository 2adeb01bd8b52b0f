"""Metrics and traces of requests, written once at the end of a request.

Metric names follow OpenTelemetry's GenAI semantic conventions in Prometheus spelling. Metrics are bound to their labels
once per model and tier, and are plain numbers until they are scraped. Spans are created at the end from the request's
timestamps: a request that is not sampled costs one span object when traces are exported, and nothing otherwise.
"""

import time
from collections.abc import Callable

from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer
from prometheus_client import REGISTRY, CollectorRegistry, Gauge

from billing.metering.records import Outcome
from core.errors import PenstockError
from core.plain_metrics import Counts, Distributions
from core.telemetry import tracer_if_exported
from gateway.context import AnyContext

_TTFT_BUCKETS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 30.0, 60.0)
_TPOT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
_DURATION_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
_OVERHEAD_BUCKETS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0)


_NAMES = ("gen_ai_request_model", "tier")


class _BoundMetrics:
    """The metrics bound to one model and tier."""

    __slots__ = ("duration", "overhead", "queue", "tpot", "ttft")

    def __init__(self, families: "_Metrics", model: str, tier: str) -> None:
        self.ttft = families.ttft.of(model, tier)
        self.tpot = families.tpot.of(model, tier)
        self.duration = families.duration.of(model, tier)
        self.queue = families.queue.of(model, tier)
        self.overhead = families.overhead.of(model, tier)


class _Metrics:
    """The metric families of this package."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, bounds: tuple[float, ...]) -> Distributions:
            return Distributions(name, text, _NAMES, bounds, registry)

        self.ttft = histogram(
            "gen_ai_server_time_to_first_token_seconds", "Receipt to first content", _TTFT_BUCKETS
        )
        self.tpot = histogram(
            "gen_ai_server_time_per_output_token_seconds",
            "Between output tokens after the first",
            _TPOT_BUCKETS,
        )
        self.duration = histogram(
            "gen_ai_server_request_duration_seconds", "Receipt to last byte", _DURATION_BUCKETS
        )
        self.queue = histogram("penstock_queue_seconds", "Waiting for a replica", _DURATION_BUCKETS)
        self.overhead = histogram(
            "penstock_admission_seconds", "Receipt to dispatch, queueing excluded", _OVERHEAD_BUCKETS
        )
        self.tokens = Counts(
            "gen_ai_usage_tokens", "Tokens counted by engines", (*_NAMES, "gen_ai_token_type"), registry
        )
        self.requests = Counts(
            "penstock_requests", "Admitted requests by outcome", (*_NAMES, "outcome"), registry
        )
        self.refusals = Counts(
            "penstock_refusals", "Requests refused before admission, by error code", ("code",), registry
        )
        self.open = Gauge(
            "penstock_open_requests", "Requests between receipt and settlement", registry=registry
        )


class Telemetry:
    """Writes metrics and traces of requests. One per process."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._families = _Metrics(registry)
        self._bound: dict[tuple[str, str], _BoundMetrics] = {}
        self._tracer = tracer_if_exported("penstock.gateway")

    def count_refusal(self, code: str) -> None:
        """Count a request that was refused before it was admitted, by error code."""
        self._families.refusals.add((code,))

    def track_open_requests(self, count: Callable[[], int]) -> None:
        """Export the number of open requests; `count` is called at each scrape."""
        self._families.open.set_function(count)

    def record(self, context: AnyContext) -> None:
        """Write the metrics of a finished request, and its trace if it is sampled or has failed."""
        if context.open_record is not None and context.outcome is not None:
            self._count(context, context.outcome)
        elif isinstance(context.error, PenstockError):
            self.count_refusal(context.error.code)
        if self._tracer is not None:
            self._trace(context, self._tracer)

    def _count(self, context: AnyContext, outcome: Outcome) -> None:
        key = (context.request.model.name, context.request.tier)
        bound = self._bound.get(key)
        if bound is None:
            bound = self._bound[key] = _BoundMetrics(self._families, *key)
        self._families.requests.add((*key, outcome.value))
        usage = context.usage
        end = context.settled_at
        bound.duration.observe(end - context.request.received_at)
        queue_s = context.routing.placement.queue_s if context.routing.placement is not None else 0.0
        bound.queue.observe(queue_s)
        bound.overhead.observe(max(0.0, context.routing.placed_at - context.request.received_at - queue_s))
        tokens = self._families.tokens
        tokens.add((*key, "input"), usage.input)
        tokens.add((*key, "output"), usage.output)
        tokens.add((*key, "cached_input"), usage.cached_input)
        if context.answer.first_content_at:
            bound.ttft.observe(context.answer.first_content_at - context.request.received_at)
            if usage.output > 1:
                bound.tpot.observe((end - context.answer.first_content_at) / (usage.output - 1))

    def _trace(self, context: AnyContext, tracer: Tracer) -> None:
        """Write the request's span, with one child span per phase if the trace is sampled or the request failed."""
        request = context.request
        operation = "chat" if request.prepared.endpoint == "chat" else "text_completion"
        span = tracer.start_span(
            f"{operation} {request.model.name}",
            kind=SpanKind.SERVER,
            start_time=_wall_ns(request.received_at),
        )
        if not span.is_recording():
            return
        failed = context.error is not None and context.abort_reason is None
        if span.get_span_context().trace_flags.sampled or failed:
            span.set_attributes(_attributes(context))
            parent = trace.set_span_in_context(span)
            end = context.settled_at or time.monotonic()
            instants = (
                context.request.received_at,
                context.reserved.granted_at,
                context.routing.placed_at,
                end,
            )
            for name, start, stop in zip(("admit", "place", "relay"), instants, instants[1:], strict=False):
                if start and stop:
                    child = tracer.start_span(name, parent, start_time=_wall_ns(start))
                    child.end(_wall_ns(stop))
            if context.settled_at:
                child = tracer.start_span("settle", parent, start_time=_wall_ns(end))
                child.end()
            if failed:
                span.set_status(Status(StatusCode.ERROR, type(context.error).__name__))
        span.end()


def _attributes(context: AnyContext) -> dict[str, str | int | float | bool]:
    """The GenAI attributes of a request, without its text."""
    usage = context.usage
    found: dict[str, str | int | float | bool] = {
        "gen_ai.operation.name": "chat" if context.request.prepared.endpoint == "chat" else "text_completion",
        "gen_ai.provider.name": "penstock",
        "gen_ai.request.model": context.request.model.name,
        "gen_ai.request.stream": context.request.prepared.stream,
        "gen_ai.usage.input_tokens": usage.input,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_input,
        "gen_ai.usage.output_tokens": usage.output,
        "penstock.request_id": context.request.id_text,
        "penstock.tenant_id": str(context.request.principal.tenant_id),
        "penstock.attempts": context.routing.attempts,
    }
    if context.request.prepared.max_tokens:
        found["gen_ai.request.max_tokens"] = context.request.prepared.max_tokens
    if context.answer.first_content_at:
        found["gen_ai.response.time_to_first_chunk"] = (
            context.answer.first_content_at - context.request.received_at
        )
    if context.outcome is not None:
        found["penstock.outcome"] = context.outcome.value
    if context.routing.placement is not None:
        found["penstock.replica_id"] = context.routing.placement.replica_id
        found["penstock.queue_s"] = context.routing.placement.queue_s
    if isinstance(context.error, PenstockError):
        found["error.type"] = context.error.code
    return found


def _wall_ns(monotonic_s: float) -> int:
    """Nanoseconds since 1970 of an instant in monotonic seconds."""
    return time.time_ns() - int((time.monotonic() - monotonic_s) * 1e9)
