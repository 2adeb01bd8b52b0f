"""What the supervisor makes of the answers, and of the silence, of the processes that it probes."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from cli import probes
from cli.probes import SILENT_PROBES, STARTING_PROBES, ProbeCount, probe
from tests.support.ports import free_port, listening


def test_a_process_that_ran_hangs_after_some_probes_and_one_that_starts_after_more() -> None:
    starting = ProbeCount()
    assert [bool(starting.add("no answer")) for _ in range(STARTING_PROBES)].index(
        True
    ) == STARTING_PROBES - 1
    running = ProbeCount()
    assert not running.add("")
    found = [running.add("no answer") for _ in range(SILENT_PROBES)]
    assert found == [""] * (SILENT_PROBES - 1) + [f"{SILENT_PROBES} probes in a row failed: no answer"]


def test_an_answer_forgives_the_probes_before() -> None:
    count = ProbeCount()
    for _ in range(3):
        assert not count.add("")
        assert not any(count.add("no answer") for _ in range(SILENT_PROBES - 1))


@asynccontextmanager
async def answering(handle: Callable[[], web.Response]) -> AsyncIterator[str]:
    async def health(request: web.Request) -> web.Response:
        return handle()

    app = web.Application()
    app.router.add_get("/healthz", health)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/healthz"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (200, '{"status": "ok"}', ""),
        (503, '{"status": "unhealthy", "failing_tasks": ["lease"]}', ""),
        (503, '{"status": "stalled", "stalled": ["beat", "jobs"]}', "it stands still: beat, jobs"),
        (200, "ok", ""),
    ],
    ids=["healthy", "unhealthy", "stalled", "of another program"],
)
async def test_only_a_process_that_stands_still_fails_its_probe(status: int, body: str, why: str) -> None:
    async with (
        answering(lambda: web.Response(status=status, text=body)) as url,
        aiohttp.ClientSession() as session,
    ):
        assert await probe(session, url) == why


async def test_silence_and_a_closed_port_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "PROBE_S", 0.1)
    with listening() as silent:
        async with aiohttp.ClientSession() as session:
            port = silent.getsockname()[1]
            assert "no answer within" in await probe(session, f"http://127.0.0.1:{port}/healthz")
            assert "no answer: " in await probe(session, f"http://127.0.0.1:{free_port()}/healthz")
