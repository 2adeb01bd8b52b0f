"""A role's internal port over real HTTP."""

import asyncio
from functools import partial

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter

from cli import probe as container_probe
from cli.probes import probe
from core.supervise import FAILURES, FailingTasks
from core.telemetry import MetricsServer


async def fetch(port: int, path: str, **headers: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}", headers=headers) as response,
    ):
        return response.status, await response.text()


async def test_metrics_and_health() -> None:
    registry = CollectorRegistry()
    Counter("penstock_tests", "How many.", registry=registry).inc(3)
    healthy = True
    server = MetricsServer(registry=registry, healthy=lambda: healthy)
    port = await server.start()
    try:
        status, text = await fetch(port, "/metrics")
        assert status == 200
        assert "penstock_tests_total 3.0" in text
        assert await fetch(port, "/healthz") == (200, '{"status": "ok", "failing_tasks": []}')
        healthy = False
        assert (await fetch(port, "/healthz"))[0] == 503
        assert (await fetch(port, "/other"))[0] == 404
    finally:
        await server.close()


async def test_a_task_that_keeps_failing_makes_its_process_unhealthy() -> None:
    failing = FailingTasks()
    server = MetricsServer(registry=CollectorRegistry(), failing=failing)
    port = await server.start()
    try:
        for _ in range(FAILURES):
            assert (await fetch(port, "/healthz"))[0] == 200
            failing.add("scheduler")
        assert await fetch(port, "/healthz") == (
            503,
            '{"status": "unhealthy", "failing_tasks": ["scheduler"]}',
        )
    finally:
        await server.close()


async def test_work_that_is_late_and_work_that_hangs_are_named() -> None:
    overdue: list[str] = []
    stalled: list[str] = []
    server = MetricsServer(registry=CollectorRegistry(), overdue=lambda: overdue, stalled=lambda: stalled)
    port = await server.start()
    try:
        assert (await fetch(port, "/healthz"))[0] == 200
        overdue.append("penstock.seal")
        assert await fetch(port, "/healthz") == (
            503,
            '{"status": "unhealthy", "failing_tasks": [], "overdue": ["penstock.seal"]}',
        )
        stalled.append("penstock.export")
        status, text = await fetch(port, "/healthz")
        assert (status, '"status": "stalled"' in text, '"stalled": ["penstock.export"]' in text) == (
            503,
            True,
            True,
        )
        async with aiohttp.ClientSession() as session:
            why = await probe(session, f"http://127.0.0.1:{port}/healthz")
        assert why == "it stands still: penstock.export"
    finally:
        await server.close()


async def test_a_container_is_alive_until_it_stands_still_and_healthy_until_it_says_otherwise() -> None:
    healthy, stalled = True, list[str]()
    server = MetricsServer(registry=CollectorRegistry(), healthy=lambda: healthy, stalled=lambda: stalled)
    url = f"http://127.0.0.1:{await server.start()}/healthz"

    async def codes() -> tuple[int, int]:
        """Exit statuses of the check of health and of that of life."""
        check = partial(asyncio.to_thread, container_probe.main)
        return await check([url]), await check(["--alive", url])

    try:
        assert await codes() == (0, 0)
        healthy = False
        assert await codes() == (1, 0)
        stalled.append("penstock.export")
        assert await codes() == (1, 1)
    finally:
        await server.close()
    assert await codes() == (1, 1)
    assert container_probe.main(["--alive"]) == container_probe.main(["--dead", url]) == 2


async def test_a_token_closes_metrics_but_not_health() -> None:
    server = MetricsServer(token="inner", registry=CollectorRegistry())
    port = await server.start()
    try:
        assert (await fetch(port, "/metrics"))[0] == 401
        assert (await fetch(port, "/metrics", Authorization="Bearer wrong"))[0] == 401
        assert (await fetch(port, "/metrics", Authorization="Bearer inner"))[0] == 200
        assert (await fetch(port, "/healthz"))[0] == 200
        other = MetricsServer(port, registry=CollectorRegistry())
        with pytest.raises(OSError, match="in use"):
            await other.start()
        await other.close()
    finally:
        await server.close()
