"""Metrics and spans of a request, written when it is over."""

import json

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from core.errors import EngineFailed, InsufficientCredit
from core.ids import uuid7
from core.settings import Settings
from core.telemetry import build_provider
from gateway.schemas.chat import parse_chat
from gateway.telemetry import Telemetry
from tests.support.gateway_fakes import FakeEngines, FakeReply, Gateway, answer, principal

BODY = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "secret words"}]}).encode()


def gateway_with(sample: float, *scripts: object) -> tuple[Gateway, InMemorySpanExporter, CollectorRegistry]:
    exporter = InMemorySpanExporter()
    provider: TracerProvider = build_provider(
        "api", Settings(trace_sample=sample), SimpleSpanProcessor(exporter)
    )
    registry = CollectorRegistry()
    telemetry = Telemetry(registry)
    telemetry._tracer = provider.get_tracer("test")
    return Gateway(FakeEngines(*scripts), telemetry=telemetry), exporter, registry


async def test_a_sampled_request_leaves_its_phases() -> None:
    gateway, exporter, registry = gateway_with(1.0, answer(["a", "b"]))
    await gateway.director.handle(uuid7(), principal(), parse_chat(BODY), FakeReply())
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert set(spans) == {"chat tiny", "admit", "place", "relay", "settle"}
    root = spans["chat tiny"]
    assert root.attributes["gen_ai.usage.output_tokens"] == 2
    assert root.attributes["penstock.outcome"] == "completed"
    assert all(
        span.parent.span_id == root.context.span_id for name, span in spans.items() if span is not root
    )
    assert "secret" not in str([dict(span.attributes) for span in spans.values()])
    labels = {"gen_ai_request_model": "tiny", "tier": "standard"}
    assert registry.get_sample_value("penstock_requests_total", {**labels, "outcome": "completed"}) == 1
    output = {**labels, "gen_ai_token_type": "output"}
    assert registry.get_sample_value("gen_ai_usage_tokens_total", output) == 2
    assert registry.get_sample_value("gen_ai_server_time_to_first_token_seconds_count", labels) == 1


async def test_unsampled_requests_leave_nothing_unless_they_fail() -> None:
    gateway, exporter, _ = gateway_with(0.0, answer(["a"]), EngineFailed("x"), EngineFailed("y"))
    await gateway.director.handle(uuid7(), principal(), parse_chat(BODY), FakeReply())
    assert exporter.get_finished_spans() == ()
    with pytest.raises(EngineFailed):
        await gateway.director.handle(uuid7(), principal(), parse_chat(BODY), FakeReply())
    names = [span.name for span in exporter.get_finished_spans()]
    assert names[-1] == "chat tiny"
    assert len(names) == 5


async def test_refusals_are_counted_by_code() -> None:
    gateway, _, registry = gateway_with(0.0)
    gateway.holds.refuse = InsufficientCredit("no")
    with pytest.raises(InsufficientCredit):
        await gateway.director.handle(uuid7(), principal(), parse_chat(BODY), FakeReply())
    assert registry.get_sample_value("penstock_refusals_total", {"code": "insufficient_credit"}) == 1
