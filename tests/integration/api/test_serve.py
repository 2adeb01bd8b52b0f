"""The api role as a process: it drains on SIGTERM, finishes its streams and settles them."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.support.api_process import MODEL, PEPPER, Api, api_process
from tests.support.ports import free_port
from tests.support.scheduling import TOKEN
from tests.support.waiting import until

HELLO = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
MAIN = (
    "import sys; from api.serve import main; from core.settings import Settings; sys.exit(main(Settings()))"
)


@asynccontextmanager
async def _process(
    api: Api, data_dir: Path, drain_s: int
) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """A second API process beside `api`, with its URL."""
    port, settings = free_port(), api.deps.settings
    env = {
        **os.environ,
        "DATABASE_URL": settings.database_url,
        "REDIS_URL": settings.redis_url,
        "PENSTOCK_DATA_DIR": str(data_dir),
        "PENSTOCK_PORT": str(port),
        "PENSTOCK_INTERNAL_TOKEN": TOKEN,
        "PENSTOCK_KEY_PEPPER": PEPPER.decode(),
        "PENSTOCK_ENGINE_KEY": settings.engine_key.get_secret_value(),
        "PENSTOCK_SCHEDULER_PORT": str(settings.scheduler_port),
        "PENSTOCK_DRAIN_S": str(drain_s),
    }
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", MAIN, env=env)
    try:
        url = f"http://127.0.0.1:{port}"
        await until(lambda: _ready(api.session, url), timeout_s=120)
        yield url, process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("how", ["the drain ends", "a second signal"])
async def test_what_is_cut_is_told_so(pg_url: str, redis_url: str, tmp_path: Path, how: str) -> None:
    """A stream gets an error event and a proper end, a whole answer a 503 with its id; both are recorded."""
    async with api_process(pg_url, redis_url, tmp_path / "one", speedup=0.05) as api:
        drain_s = 1 if how == "the drain ends" else 600
        async with _process(api, tmp_path / "two", drain_s) as (url, process):
            headers = {"Authorization": f"Bearer {api.organisation.key}"}
            body = {**HELLO, "max_tokens": 1500}
            whole = asyncio.create_task(
                api.session.post(f"{url}/v1/chat/completions", json=body, headers=headers)
            )
            async with api.session.post(
                f"{url}/v1/chat/completions", json={**body, "stream": True}, headers=headers
            ) as stream:
                await stream.content.readany()
                await until(
                    lambda: sum(one.server._loop.model.running for one in api.engines) == 2, timeout_s=60
                )
                process.send_signal(signal.SIGTERM)
                if how == "a second signal":
                    await until(lambda: _refuses(api.session, url), timeout_s=60)
                    process.send_signal(signal.SIGTERM)
                events = (await stream.content.read()).split(b"\n\n")
            assert events[-2:] == [b"data: [DONE]", b""]
            assert json.loads(events[-3].removeprefix(b"data: "))["error"]["code"] == "shutting_down"
            answer = await whole
            assert answer.status == 503
            assert (await answer.json())["error"]["code"] == "shutting_down"
            assert await asyncio.wait_for(process.wait(), 60) == 0
        rows = await api.usage_rows(2)
        assert {row.outcome for row in rows} == {"interrupted"}
        assert answer.headers["x-request-id"] in {
            str(row.request_id) for row in rows if not row.output_tokens
        }


async def test_sigterm_finishes_open_streams(pg_url: str, redis_url: str, tmp_path: Path) -> None:
    async with api_process(pg_url, redis_url, tmp_path / "one", speedup=2.0) as api:
        async with _process(api, tmp_path / "two", 60) as (url, process):
            headers = {"Authorization": f"Bearer {api.organisation.key}"}
            body = {**HELLO, "max_tokens": 120, "stream": True}
            async with api.session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
                assert answer.status == 200
                first = await answer.content.readany()
                process.send_signal(signal.SIGTERM)
                rest = await answer.content.read()
            assert (first + rest).endswith(b"data: [DONE]\n\n")
            assert await asyncio.wait_for(process.wait(), 60) == 0
        [row] = await api.usage_rows(1)
        assert row.outcome in ("completed", "length")
        assert row.output_tokens == (first + rest).count(b'"content":') - 1


async def _refuses(session: aiohttp.ClientSession, url: str) -> bool:
    """Whether no more connections are accepted."""
    try:
        async with session.get(f"{url}/healthz", headers={"Connection": "close"}):
            return False
    except aiohttp.ClientError:
        return True


async def _ready(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(f"{url}/readyz") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False
