"""Traces over OTLP/HTTP to a collector of the test, from its own process (a process sets its provider once)."""

import asyncio
import os
import sys
from pathlib import Path

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

ROOT = Path(__file__).resolve().parents[3]

_PROGRAM = """
from core.settings import Settings
from core.telemetry import flush_tracing, setup_tracing, tracer_if_exported
from opentelemetry.trace import StatusCode

settings = Settings()
setup_tracing("api", settings)
setup_tracing("api", settings)
for failed in (False, True):
    with tracer_if_exported("test").start_as_current_span("failed" if failed else "fine") as span:
        if failed:
            span.set_status(StatusCode.ERROR)
flush_tracing()
"""


async def test_an_errored_trace_reaches_the_collector_and_an_unsampled_one_does_not() -> None:
    received: list[ExportTraceServiceRequest] = []

    async def collect(request: web.Request) -> web.Response:
        received.append(ExportTraceServiceRequest.FromString(await request.read()))
        return web.Response()

    app = web.Application()
    app.router.add_post("/v1/traces", collect)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    env = {
        **os.environ,
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        "PENSTOCK_TRACE_SAMPLE": "0",
    }
    try:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", _PROGRAM, cwd=ROOT, env=env)
        async with asyncio.timeout(60):
            assert await process.wait() == 0
    finally:
        await runner.cleanup()
    spans = [
        (resource.resource.attributes, span.name)
        for message in received
        for resource in message.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert [name for _, name in spans] == ["failed"]
    attributes = {each.key: each.value.string_value for each in spans[0][0]}
    assert attributes["service.name"] == "penstock-api"
