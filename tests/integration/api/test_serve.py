"""The api role as a process: it drains on SIGTERM, finishes its streams and settles them."""

import asyncio
import json
import signal
from pathlib import Path

import aiohttp
import pytest

from tests.support.api_process import MODEL, another_process, api_process
from tests.support.waiting import until

HELLO = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("how", ["the drain ends", "a second signal"])
async def test_what_is_cut_is_told_so(pg_url: str, redis_url: str, tmp_path: Path, how: str) -> None:
    """A stream gets an error event and a proper end, a whole answer a 503 with its id; both are recorded."""
    async with api_process(pg_url, redis_url, tmp_path / "one", speedup=0.05) as api:
        drain_s = 1 if how == "the drain ends" else 600
        async with another_process(api, tmp_path / "two", drain_s=drain_s) as (url, process):
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
        async with another_process(api, tmp_path / "two", drain_s=60) as (url, process):
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
