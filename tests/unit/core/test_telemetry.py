"""Exported traces: the sampled share, and every trace with an error."""

from collections.abc import Sequence

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, StatusCode, TraceFlags, set_span_in_context

from core import telemetry
from core.settings import Settings


def provider(sample: float) -> tuple[TracerProvider, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    settings = Settings(trace_sample=sample)
    return telemetry.build_provider("api", settings, SimpleSpanProcessor(exporter)), exporter


def names(spans: Sequence[ReadableSpan]) -> list[str]:
    return [span.name for span in spans]


def run_request(source: TracerProvider, fail: bool) -> None:
    tracer = source.get_tracer("test")
    with tracer.start_as_current_span("request"):
        with tracer.start_as_current_span("admit"):
            pass
        with tracer.start_as_current_span("relay") as span:
            if fail:
                span.set_status(StatusCode.ERROR)


def test_a_share_of_zero_exports_only_errors() -> None:
    source, exporter = provider(0.0)
    run_request(source, fail=False)
    assert exporter.get_finished_spans() == ()
    run_request(source, fail=True)
    assert names(exporter.get_finished_spans()) == ["admit", "relay", "request"]
    [trace_id] = {span.context.trace_id for span in exporter.get_finished_spans() if span.context}
    assert trace_id
    assert exporter.get_finished_spans()[0].resource.attributes["service.name"] == "penstock-api"


def test_a_share_of_one_exports_everything() -> None:
    source, exporter = provider(1.0)
    run_request(source, fail=False)
    assert names(exporter.get_finished_spans()) == ["admit", "relay", "request"]


def test_an_exception_is_an_error() -> None:
    source, exporter = provider(0.0)
    with (
        pytest.raises(ValueError, match="broken"),
        source.get_tracer("test").start_as_current_span("request"),
    ):
        raise ValueError("broken")
    assert names(exporter.get_finished_spans()) == ["request"]


@pytest.mark.parametrize("flags", [TraceFlags.DEFAULT, TraceFlags.SAMPLED])
def test_a_remote_parent_decides(flags: int) -> None:
    source, exporter = provider(0.0)
    remote = NonRecordingSpan(SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(flags)))
    context = set_span_in_context(remote)
    with source.get_tracer("test").start_as_current_span("request", context=context):
        pass
    assert len(exporter.get_finished_spans()) == (1 if flags else 0)
    with source.get_tracer("test").start_as_current_span("request", context=context) as span:
        span.set_status(StatusCode.ERROR)
    assert len(exporter.get_finished_spans()) == (2 if flags else 1)


def test_memory_for_unfinished_traces_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "_MAX_PENDING_TRACES", 10)
    monkeypatch.setattr(telemetry, "_MAX_SPANS_PER_TRACE", 5)
    exporter = InMemorySpanExporter()
    keep = telemetry.KeepErrors(SimpleSpanProcessor(exporter))
    source = telemetry.build_provider("api", Settings(trace_sample=0.0), keep)
    tracer = source.get_tracer("test")
    roots = [tracer.start_span("request") for _ in range(50)]
    for root in roots:
        for _ in range(20):
            tracer.start_span("child", context=set_span_in_context(root)).end()
    outer = source._active_span_processor._span_processors[0]
    assert isinstance(outer, telemetry.KeepErrors)
    assert len(outer._pending) == 10
    assert max(map(len, outer._pending.values())) == 5


def test_without_an_endpoint_spans_are_no_ops() -> None:
    before = trace.get_tracer_provider()
    telemetry.setup_tracing("api", Settings(otlp_endpoint=""))
    assert trace.get_tracer_provider() is before
    with trace.get_tracer("x").start_as_current_span("request") as span:
        assert not span.is_recording()
