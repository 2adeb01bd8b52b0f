"""Metrics and traces of requests, written once when a request is over.

Metric names follow the GenAI semantic conventions in Prometheus spelling. Children are bound to their labels once per
model. Spans are made after the fact from the timestamps the run already has: a request that is not sampled costs one
span object when traces are exported and nothing when they are not.
"""

import time
from collections.abc import Callable
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from billing.metering.records import Outcome
from core.errors import PenstockError
from core.telemetry import tracer
from gateway.run import AnyRun

_TTFT = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 30.0, 60.0)
_TPOT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
_DURATION = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
_OVERHEAD = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0)


class _Bound:
    """The metrics of one model and tier."""

    __slots__ = ("cached", "duration", "input", "output", "overhead", "queue", "tpot", "ttft")

    def __init__(self, families: "_Families", model: str, tier: str) -> None:
        self.ttft = families.ttft.labels(model, tier)
        self.tpot = families.tpot.labels(model, tier)
        self.duration = families.duration.labels(model, tier)
        self.queue = families.queue.labels(model, tier)
        self.overhead = families.overhead.labels(model, tier)
        self.input = families.tokens.labels(model, tier, "input")
        self.cached = families.tokens.labels(model, tier, "cached_input")
        self.output = families.tokens.labels(model, tier, "output")


class _Families:
    """Everything this package exports to Prometheus."""

    def __init__(self, registry: CollectorRegistry) -> None:
        names = ("gen_ai_request_model", "tier")

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, names, buckets=buckets, registry=registry)

        self.ttft = histogram("gen_ai_server_time_to_first_token_seconds", "Receipt to first content", _TTFT)
        self.tpot = histogram(
            "gen_ai_server_time_per_output_token_seconds", "Between output tokens after the first", _TPOT
        )
        self.duration = histogram("gen_ai_server_request_duration_seconds", "Receipt to last byte", _DURATION)
        self.queue = histogram("penstock_queue_seconds", "Waiting for a replica", _DURATION)
        self.overhead = histogram(
            "penstock_admission_seconds", "Receipt to dispatch, queueing excluded", _OVERHEAD
        )
        self.tokens = Counter(
            "gen_ai_usage_tokens",
            "Tokens counted by engines",
            (*names, "gen_ai_token_type"),
            registry=registry,
        )
        self.requests = Counter(
            "penstock_requests", "Admitted requests by outcome", (*names, "outcome"), registry=registry
        )
        self.refusals = Counter(
            "penstock_refusals",
            "Requests refused before admission, by error code",
            ("code",),
            registry=registry,
        )
        self.open = Gauge(
            "penstock_open_requests", "Requests between receipt and settlement", registry=registry
        )


class Telemetry:
    """One per process."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._families = _Families(registry)
        self._bound: dict[tuple[str, str], _Bound] = {}
        self._outcomes: dict[tuple[str, str, Outcome], Any] = {}
        self._tracer = tracer("penstock.gateway")

    def refused(self, code: str) -> None:
        """A request was turned away before it was admitted."""
        self._families.refusals.labels(code).inc()

    def watch_open(self, count: Callable[[], int]) -> None:
        """Show how many requests are open, asked at each scrape."""
        self._families.open.set_function(count)

    def finished(self, run: AnyRun) -> None:
        """A request is over: count it if it was admitted, and trace it."""
        if run.open_record is not None and run.outcome is not None:
            self._count(run, run.outcome)
        elif isinstance(run.error, PenstockError):
            self.refused(run.error.code)
        span = self._tracer.start_span(
            f"{'chat' if run.request.prepared.dialect == 'chat' else 'text_completion'} {run.request.model.name}",
            kind=SpanKind.SERVER,
            start_time=_wall_ns(run.request.received_at),
        )
        if span.is_recording():
            self._trace(run, span)

    def _count(self, run: AnyRun, outcome: Outcome) -> None:
        key = (run.request.model.name, run.request.principal.tier)
        bound = self._bound.get(key)
        if bound is None:
            bound = self._bound[key] = _Bound(self._families, *key)
        requests = self._outcomes.get((*key, outcome))
        if requests is None:
            requests = self._outcomes[(*key, outcome)] = self._families.requests.labels(*key, outcome.value)
        requests.inc()
        usage = run.usage
        end = run.settled_at
        bound.duration.observe(end - run.request.received_at)
        queue_s = run.routing.placement.queue_s if run.routing.placement is not None else 0.0
        bound.queue.observe(queue_s)
        bound.overhead.observe(max(0.0, run.routing.placed_at - run.request.received_at - queue_s))
        bound.input.inc(usage.input)
        bound.output.inc(usage.output)
        if usage.cached_input:
            bound.cached.inc(usage.cached_input)
        if run.answer.first_content_at:
            bound.ttft.observe(run.answer.first_content_at - run.request.received_at)
            if usage.output > 1:
                bound.tpot.observe((end - run.answer.first_content_at) / (usage.output - 1))

    def _trace(self, run: AnyRun, span: Span) -> None:
        """The request's span with one child per phase."""
        failed = run.error is not None and run.cut_reason is None
        if span.get_span_context().trace_flags.sampled or failed:
            span.set_attributes(_attributes(run))
            parent = trace.set_span_in_context(span)
            end = run.settled_at or time.monotonic()
            borders = (run.request.received_at, run.reserved.granted_at, run.routing.placed_at, end)
            for name, start, stop in zip(("admit", "place", "relay"), borders, borders[1:], strict=False):
                if start and stop:
                    child = self._tracer.start_span(name, parent, start_time=_wall_ns(start))
                    child.end(_wall_ns(stop))
            if run.settled_at:
                child = self._tracer.start_span("settle", parent, start_time=_wall_ns(end))
                child.end()
            if failed:
                span.set_status(Status(StatusCode.ERROR, type(run.error).__name__))
        span.end()


def _attributes(run: AnyRun) -> dict[str, str | int | float | bool]:
    """GenAI attributes of a request; never its text."""
    usage = run.usage
    found: dict[str, str | int | float | bool] = {
        "gen_ai.operation.name": "chat" if run.request.prepared.dialect == "chat" else "text_completion",
        "gen_ai.provider.name": "penstock",
        "gen_ai.request.model": run.request.model.name,
        "gen_ai.request.stream": run.request.prepared.stream,
        "gen_ai.usage.input_tokens": usage.input,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_input,
        "gen_ai.usage.output_tokens": usage.output,
        "penstock.request_id": str(run.request.id),
        "penstock.tenant_id": str(run.request.principal.tenant_id),
        "penstock.attempts": run.routing.attempts,
    }
    if run.request.prepared.max_tokens:
        found["gen_ai.request.max_tokens"] = run.request.prepared.max_tokens
    if run.answer.first_content_at:
        found["gen_ai.response.time_to_first_chunk"] = run.answer.first_content_at - run.request.received_at
    if run.outcome is not None:
        found["penstock.outcome"] = run.outcome.value
    if run.routing.placement is not None:
        found["penstock.replica_id"] = run.routing.placement.replica_id
        found["penstock.queue_s"] = run.routing.placement.queue_s
    if isinstance(run.error, PenstockError):
        found["error.type"] = run.error.code
    return found


def _wall_ns(monotonic_s: float) -> int:
    """The wall clock's nanoseconds of a monotonic instant."""
    return time.time_ns() - int((time.monotonic() - monotonic_s) * 1e9)
