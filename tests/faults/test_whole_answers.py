"""Answers with tools in one piece: their client leaves, their API process is killed (promises 6, 7, 8)."""

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import aiohttp
import httpx
import pytest

from billing.metering.frames import parse
from billing.metering.records import Checkpoint
from tests.support import load
from tests.support.invariants import money_is_sound, rows_by_request, settled_everything
from tests.support.log_search import PROMPT
from tests.support.stack import Stack, Tenant
from tests.support.waiting import until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(420)]

TOOL = {
    "type": "function",
    "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}},
}
QUESTION = f"What runs from the lake to the wheel, {PROMPT}? " * 8


async def ask(
    stack: Stack, tenant: Tenant, session: aiohttp.ClientSession, max_tokens: int
) -> dict[str, Any]:
    body = {
        "model": stack.ready["model"],
        "max_tokens": max_tokens,
        "messages": [{"role": "user", "content": QUESTION}],
        "tools": [TOOL],
    }
    headers = {"Authorization": f"Bearer {tenant.key}"}
    async with session.post(f"{stack.base_url}/chat/completions", json=body, headers=headers) as answer:
        found: dict[str, Any] = await answer.json()
        assert answer.status == 200, found
        return found


def counted_prompt(stack: Stack) -> int:
    """The prompt tokens in the last checkpoint of an open request; 0 = there is none."""
    counts = [
        frame.record.usage.input
        for path in (stack.data_dir / "spool").glob("*.spool")
        for frame in parse(path.read_bytes())
        if isinstance(frame.record, Checkpoint)
    ]
    return counts[-1] if counts else 0


def engine_is_idle(stack: Stack) -> bool:
    lines = httpx.get(stack.ready["engines"][0]["metrics_url"], timeout=60.0).text.splitlines()
    running = [line for line in lines if line.startswith("vllm:num_requests_running")]
    return all(float(line.rsplit(" ", 1)[1]) == 0 for line in running)


async def only_row(stack: Stack, tenant: Tenant) -> dict[str, Any]:
    """The one usage row of a tenant."""
    await settled_everything(stack, tenant.id)

    async def there() -> bool:
        return len(await rows_by_request(stack, tenant.id)) == 1

    await until(there, timeout_s=60)
    await money_is_sound(stack, tenant.id)
    [row] = (await rows_by_request(stack, tenant.id)).values()
    return row


async def open_answer(
    stack: Stack, tenant: Tenant, session: aiohttp.ClientSession
) -> "asyncio.Task[dict[str, Any]]":
    """An answer of at least half a minute, once its prompt is known to be prefilled."""
    stack.failpoints(step_delay_s=0.03)
    task = asyncio.create_task(ask(stack, tenant, session, 1500))
    await until(lambda: task.done() or counted_prompt(stack), timeout_s=60)
    assert not task.done()
    return task


@pytest.mark.promise(6, 8)
async def test_a_client_that_leaves_pays_its_prompt(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack()
    tenant = stack.make_tenant("Gone")
    before = stack.engine_counters()
    async with load.session() as session:
        task = await open_answer(stack, tenant, session)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: engine_is_idle(stack), timeout_s=20.0)
        row = await only_row(stack, tenant)
        after = stack.engine_counters()
        assert row["outcome"] == "client_cancelled"
        assert row["output_tokens"] == 0
        assert row["input_tokens"] == after["prompt_tokens_total"] - before["prompt_tokens_total"]
        assert row["cost"] > 0
        assert after["generation_tokens_total"] > before["generation_tokens_total"]
        stack.failpoints()
        whole = await ask(stack, tenant, session, 20)
    assert whole["usage"]["prompt_tokens"] == row["input_tokens"]
    assert whole["usage"]["completion_tokens"] <= 20
    assert whole["choices"][0]["message"]["content"]


@pytest.mark.promise(7, 8)
async def test_a_killed_api_process_bills_the_prompt(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack()
    tenant = stack.make_tenant("Kill")
    before = stack.engine_counters()
    async with load.session() as session:
        task = await open_answer(stack, tenant, session)
        for pid in stack.pids("api"):
            os.kill(pid, signal.SIGKILL)
        await asyncio.gather(task, return_exceptions=True)
    row = await only_row(stack, tenant)
    assert row["outcome"] == "interrupted"
    assert row["output_tokens"] == 0
    generated = stack.engine_counters()["prompt_tokens_total"] - before["prompt_tokens_total"]
    assert 0 < row["input_tokens"] == generated
    assert row["cost"] > 0
