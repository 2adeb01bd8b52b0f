"""The shipped Caddyfile under the real Caddy, in front of API processes (`make edge` fetches Caddy)."""

import asyncio
import io
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.api_process import MODEL, Api, another_process, answers, api_process
from tests.support.ports import free_port
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[3]
CADDY = shutil.which("caddy") or shutil.which(ROOT / ".tools/usr/bin/caddy")
HELLO = {"model": MODEL, "messages": [{"role": "user", "content": "Say something about water."}]}
pytestmark = pytest.mark.skipif(CADDY is None, reason="no caddy: `make edge` fetches it on Debian")


@asynccontextmanager
async def edge(api: Api, directory: Path, *upstreams: str) -> AsyncIterator[str]:
    """Caddy with the shipped configuration on a free port, before `upstreams` (URLs of API processes)."""
    assert CADDY is not None
    address = f"http://127.0.0.1:{free_port()}"
    env = {
        **os.environ,
        "HOME": str(directory),
        "XDG_DATA_HOME": str(directory),
        "XDG_CONFIG_HOME": str(directory),
        "PENSTOCK_DOMAIN": address,
        "PENSTOCK_API_UPSTREAMS": " ".join(each.removeprefix("http://") for each in upstreams),
    }
    # Without its administration port, so that several can run at a time.
    config = directory / "Caddyfile"
    shipped = (ROOT / "deploy/Caddyfile").read_text()
    config.write_text(shipped.replace("{\n", "{\n\tadmin off\n", 1))
    command = [CADDY, "run", "--config", str(config), "--adapter", "caddyfile"]
    with (directory / "caddy.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, env=env, stdout=log, stderr=log)
    try:
        await until(lambda: answers(api.session, f"{address}/readyz"), what="Caddy serves")
        yield address
    finally:
        process.terminate()
        await process.wait()


def headers(api: Api) -> dict[str, str]:
    """What a customer sends."""
    return {"Authorization": f"Bearer {api.organisation.key}"}


@pytest.fixture
async def api(pg_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    async with api_process(pg_url, redis_url, tmp_path / "api", speedup=1.0) as made:
        yield made


@pytest.mark.promise(6)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_ends_its_request(api: Api, tmp_path: Path, stream: bool) -> None:
    """Chunks arrive while the engine writes; the request of a client that leaves ends, and is billed up to there."""
    body = {**HELLO, "max_tokens": 2000, "stream": stream}
    async with edge(api, tmp_path, api.url) as url, aiohttp.ClientSession() as session:
        request = asyncio.create_task(
            session.post(f"{url}/v1/chat/completions", json=body, headers=headers(api))
        )
        if stream:
            answer = await request
            await answer.content.readuntil(b'"content":')
            assert len(api.deps.open_requests) == 1, "the first chunk arrives before the last is written"
        await until(lambda: any(run.usage.output >= 3 for run in api.deps.open_requests))
        if not request.cancel():
            (await request).close()
    await until(lambda: len(api.deps.open_requests) == 0)
    [row] = await api.usage_rows(1)
    assert row.outcome == "client_cancelled"
    assert 3 <= row.output_tokens < 2000


async def test_bodies_and_heads_are_bounded(api: Api, tmp_path: Path) -> None:
    async with edge(api, tmp_path, api.url) as url:
        for path in ("/v1/chat/completions", "/admin/v1/tenants"):
            async with api.session.post(
                url + path, data=io.BytesIO(b" " * (17 << 20)), headers=headers(api)
            ) as answer:
                assert answer.status == 413
                assert (await answer.json())["error"]["code"] == "request_too_large"
        async with api.session.get(f"{url}/v1/models", headers={"X-Long": "x" * (128 << 10)}) as answer:
            assert answer.status == 431
        async with api.session.post(f"{url}/webhooks/stripe", data=b"{}") as answer:
            assert answer.headers["Content-Type"].startswith("application/json"), "answered by the API"
            assert answer.headers["X-Request-ID"]


async def test_a_restart_under_load_fails_no_request(api: Api, tmp_path: Path) -> None:
    """One of two processes is stopped: its answers end, and new requests go to the other."""
    api.engines[0].server._loop.speedup = 20.0
    async with (
        another_process(api, tmp_path / "two", shutdown_delay_s=5) as (second, process),
        edge(api, tmp_path, api.url, second) as url,
    ):
        statuses: list[int] = []

        async def client() -> None:
            while process.returncode is None:
                statuses.append(await whole_answer(api, url))

        clients = [asyncio.create_task(client()) for _ in range(4)]
        await until(lambda: len(statuses) >= 20)
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), 120)
        await asyncio.gather(*clients)
        statuses += [await whole_answer(api, url) for _ in range(5)]
    assert set(statuses) == {200}
    rows = await api.usage_rows(len(statuses))
    assert len(rows) == len(statuses)


async def whole_answer(api: Api, url: str) -> int:
    """The status of a short answer that is read to its end."""
    body: dict[str, Any] = {**HELLO, "max_tokens": 8}
    async with api.session.post(f"{url}/v1/chat/completions", json=body, headers=headers(api)) as answer:
        await answer.read()
        return answer.status


async def test_the_files_of_an_adapter_pass_and_other_bodies_of_their_size_do_not(
    api: Api, tmp_path: Path
) -> None:
    large = 17_000_000 * b"x"
    async with edge(api, tmp_path, api.url) as address:
        for path, status in (("/v1/organization/adapters", 403), ("/v1/organization/keys", 413)):
            async with api.session.post(
                address + path, data=io.BytesIO(large), headers=headers(api)
            ) as answer:
                assert answer.status == status, await answer.text()
