"""Traces and metrics of every role.

Traces: OpenTelemetry, exported over OTLP/HTTP when an endpoint is set; without one, spans are the API's no-op. A share
of traces is sampled at the start (`trace_sample`), and a trace with an error is exported in any case.
Metrics: prometheus_client; counters and histograms are defined beside the code that updates them.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from hmac import compare_digest

from aiohttp import web
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import (
    Decision,
    ParentBased,
    Sampler,
    SamplingResult,
    StaticSampler,
    TraceIdRatioBased,
)
from opentelemetry.trace import Link, SpanContext, SpanKind, StatusCode, TraceFlags, Tracer, TraceState
from opentelemetry.util.types import Attributes
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.exposition import choose_encoder

from core.settings import Settings
from core.supervise import FAILING, FailingTasks

_MAX_PENDING_TRACES = 4096
_MAX_SPANS_PER_TRACE = 64


def tracer_if_exported(name: str) -> Tracer | None:
    """The tracer of a module; None when `setup_tracing` found no endpoint, so that hot paths create no spans."""
    return trace.get_tracer(name) if isinstance(trace.get_tracer_provider(), TracerProvider) else None


def setup_tracing(role: str, settings: Settings) -> None:
    """Export this process's traces to `settings.otlp_endpoint`; does nothing without one, or when called again."""
    if not settings.otlp_endpoint or isinstance(trace.get_tracer_provider(), TracerProvider):
        return
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # slow to import

    url = settings.otlp_endpoint.rstrip("/")
    exporter = OTLPSpanExporter(endpoint=url if url.endswith("/v1/traces") else f"{url}/v1/traces")
    trace.set_tracer_provider(build_provider(role, settings, BatchSpanProcessor(exporter)))


def flush_tracing() -> None:
    """Export the buffered spans and end the exporter; called once, after a role has drained."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, TracerProvider):
        provider.shutdown()


def build_provider(role: str, settings: Settings, processor: SpanProcessor) -> TracerProvider:
    """A provider that passes sampled traces and traces with an error to `processor`."""
    record_only = StaticSampler(Decision.RECORD_ONLY)
    sampler = ParentBased(
        root=RecordOrSample(settings.trace_sample),
        remote_parent_not_sampled=record_only,
        local_parent_not_sampled=record_only,
    )
    resource = Resource.create({"service.name": f"penstock-{role}", "cloud.region": settings.region})
    provider = TracerProvider(sampler=sampler, resource=resource)
    provider.add_span_processor(KeepErrors(processor))
    return provider


class RecordOrSample(Sampler):
    """Samples a share of traces and records the others, so that those with an error can still be exported."""

    def __init__(self, ratio: float) -> None:
        self._ratio = TraceIdRatioBased(ratio)

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """The decision of TraceIdRatioBased, with RECORD_ONLY in place of DROP."""
        result = self._ratio.should_sample(parent_context, trace_id, name, kind, attributes, links)
        if result.decision is Decision.DROP:
            return SamplingResult(Decision.RECORD_ONLY, attributes, result.trace_state)
        return result

    def get_description(self) -> str:
        """The sampler's name in the SDK's diagnostics."""
        return f"RecordOrSample({self._ratio.rate})"


class KeepErrors(SpanProcessor):
    """Passes sampled spans on; buffers others until their trace ends here, and passes them on if one has an error.

    Memory is bounded: at most 4,096 unfinished traces (the oldest is evicted) of 64 spans (later ones are dropped).
    """

    def __init__(self, target: SpanProcessor) -> None:
        self._target = target
        self._pending: OrderedDict[int, list[ReadableSpan]] = OrderedDict()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Does nothing: a span is handled when it ends."""

    def on_end(self, span: ReadableSpan) -> None:
        """Pass on or buffer `span`; the outermost one of this process decides about its whole trace."""
        context = span.context
        if context is None:
            return
        if context.trace_flags.sampled:
            self._target.on_end(span)
            return
        spans = self._pending.setdefault(context.trace_id, [])
        outermost = span.parent is None or span.parent.is_remote
        if outermost or len(spans) < _MAX_SPANS_PER_TRACE:
            spans.append(span)
        if outermost:
            del self._pending[context.trace_id]
            if any(each.status.status_code is StatusCode.ERROR for each in spans):
                for each in spans:
                    self._target.on_end(_as_sampled(each))
        elif len(self._pending) > _MAX_PENDING_TRACES:
            self._pending.popitem(last=False)

    def shutdown(self) -> None:
        """Shut the target down."""
        self._target.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Flush the target."""
        return self._target.force_flush(timeout_millis)


def _as_sampled(span: ReadableSpan) -> ReadableSpan:
    """A copy of a finished span with the sampled flag, without which exporters skip it."""
    context = span.context
    assert context is not None  # noqa: S101 - on_end has checked it
    return ReadableSpan(
        name=span.name,
        context=SpanContext(
            context.trace_id,
            context.span_id,
            context.is_remote,
            TraceFlags(context.trace_flags | TraceFlags.SAMPLED),
            context.trace_state,
        ),
        parent=span.parent,
        resource=span.resource,
        attributes=span.attributes,
        events=span.events,
        links=span.links,
        kind=span.kind,
        status=span.status,
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


class MetricsServer:
    """A role's internal port: GET /metrics for Prometheus, GET /healthz for health checks.

    `port` 0 picks a free one; `start` returns the port in use. /healthz answers 503 while `healthy` returns False,
    while `overdue` names work that is late, and while background tasks of the process keep failing, which it names.
    While `stalled` names work that hangs, its status is `stalled`, at which a supervisor starts the process again.
    With a `token`, /metrics requires it as a bearer token.
    """

    def __init__(
        self,
        port: int = 0,
        *,
        host: str = "127.0.0.1",
        healthy: Callable[[], bool] = lambda: True,
        overdue: Callable[[], Sequence[str]] = lambda: (),
        stalled: Callable[[], Sequence[str]] = lambda: (),
        token: str = "",
        registry: CollectorRegistry = REGISTRY,
        failing: FailingTasks = FAILING,
    ) -> None:
        self.port = port
        self._host = host
        self._healthy = healthy
        self._overdue, self._stalled = overdue, stalled
        self._failing = failing
        self._token = token
        self._registry = registry
        self._runner: web.AppRunner | None = None

    async def start(self) -> int:
        """Listen and return the port. Raises OSError when the port is taken."""
        app = web.Application(client_max_size=1024)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._health)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self.port

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _metrics(self, request: web.Request) -> web.Response:
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if self._token and not compare_digest(given, f"Bearer {self._token}".encode()):
            return web.Response(status=401, text="metrics need the internal token\n")
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(self._registry), headers={"Content-Type": content_type})

    async def _health(self, request: web.Request) -> web.Response:
        failing, overdue, stalled = self._failing.names(), list(self._overdue()), list(self._stalled())
        healthy = self._healthy() and not (failing or overdue or stalled)
        status = "ok" if healthy else "stalled" if stalled else "unhealthy"
        late = {name: found for name, found in (("overdue", overdue), ("stalled", stalled)) if found}
        body = {"status": status, "failing_tasks": failing, **late}
        return web.json_response(body, status=200 if healthy else 503)
