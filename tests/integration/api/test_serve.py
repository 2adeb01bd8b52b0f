"""The api role as a process: it drains on SIGTERM, finishes its streams and settles them."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import aiohttp

from tests.support.api_process import MODEL, PEPPER, api_process
from tests.support.ports import free_port
from tests.support.scheduling import TOKEN
from tests.support.waiting import until

HELLO = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
MAIN = (
    "import sys; from api.serve import main; from core.settings import Settings; sys.exit(main(Settings()))"
)


async def test_sigterm_finishes_open_streams(pg_url: str, redis_url: str, tmp_path: Path) -> None:
    async with api_process(pg_url, redis_url, tmp_path / "one", speedup=2.0) as api:
        port, settings = free_port(), api.deps.settings
        env = {
            **os.environ,
            "DATABASE_URL": pg_url,
            "REDIS_URL": redis_url,
            "PENSTOCK_DATA_DIR": str(tmp_path / "two"),
            "PENSTOCK_PORT": str(port),
            "PENSTOCK_INTERNAL_TOKEN": TOKEN,
            "PENSTOCK_KEY_PEPPER": PEPPER.decode(),
            "PENSTOCK_ENGINE_KEY": settings.engine_key.get_secret_value(),
            "PENSTOCK_SCHEDULER_PORT": str(settings.scheduler_port),
        }
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", MAIN, env=env)
        try:
            url = f"http://127.0.0.1:{port}"
            await until(lambda: _ready(api.session, url), timeout_s=40)
            headers = {"Authorization": f"Bearer {api.organisation.key}"}
            body = {**HELLO, "max_tokens": 120, "stream": True}
            async with api.session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
                assert answer.status == 200
                first = await answer.content.readany()
                process.send_signal(signal.SIGTERM)
                rest = await answer.content.read()
            assert (first + rest).endswith(b"data: [DONE]\n\n")
            assert await asyncio.wait_for(process.wait(), 30) == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        [row] = await api.usage_rows(1)
        assert row.outcome in ("completed", "length")
        assert row.output_tokens == (first + rest).count(b'"content":') - 1


async def _ready(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(f"{url}/readyz") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False
