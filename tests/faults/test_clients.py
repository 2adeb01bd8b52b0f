"""What clients do to us: two hundred at once on credit for ten, and leaving mid-stream (promises 3 and 6)."""

import asyncio
from collections.abc import Callable

import httpx
import pytest

from core.money import pico_to_usd
from tests.support import load
from tests.support.invariants import money_is_sound, rows_by_request, settled_everything
from tests.support.log_search import PROMPT
from tests.support.stack import Stack
from tests.support.waiting import until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(420)]


@pytest.mark.promise(1, 3)
async def test_two_hundred_requests_on_credit_for_ten(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack("--api-workers", "2")
    model = str(stack.ready["model"])
    stack.approved(
        "POST", "/prices", json={"model": model, "input": "1", "cached_input": "1", "output": "1000000"}
    )
    tenant = stack.make_tenant("Ten", credit_usd="0")
    # An output token costs a dollar and eight are asked for: a hold is 8 dollars and some prompt tokens.
    stack.admin(
        "POST", f"/tenants/{tenant.id}/credits", json={"amount_usd": "80.50", "reason": "ten requests"}
    )
    # Hold the ten inside the engine until the other hundred and ninety have their answer.
    stack.failpoints(stall_after_tokens=1)
    seen = [load.Seen() for _ in range(200)]
    async with load.session() as session:
        tasks = [
            asyncio.create_task(
                load.patient_stream(
                    session, stack.base_url, tenant.key, model, max_tokens=8, seen=one, prompt=PROMPT
                )
            )
            for one in seen
        ]
        await until(lambda: sum(task.done() for task in tasks) == 190, timeout_s=90)
        stack.failpoints()
        await asyncio.gather(*tasks)
    assert sum(one.finished for one in seen) == 10
    refused = [one for one in seen if one.status != 200]
    assert {one.status for one in refused} == {402}
    assert {one.body["error"]["code"] for one in refused} == {"insufficient_quota"}  # type: ignore[index]
    await settled_everything(stack, tenant.id)
    rows = await rows_by_request(stack, tenant.id)
    assert len(rows) == 10
    assert sum(int(row["output_tokens"]) for row in rows.values()) == 80
    await money_is_sound(stack, tenant.id)
    balance = stack.admin("GET", f"/tenants/{tenant.id}/account")["balance_usd"]
    spent = sum(int(row["cost"]) for row in rows.values())
    assert pico_to_usd(80_500_000_000_000 - spent) == balance


@pytest.mark.promise(6)
async def test_client_gone_mid_stream_stops_the_engine(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack()
    tenant, model = stack.make_tenant("Gone"), str(stack.ready["model"])
    metrics = stack.ready["engines"][0]["metrics_url"]
    before = stack.engine_counters()["generation_tokens_total"]
    seen = load.Seen()
    async with load.session() as session:
        task = asyncio.create_task(
            load.stream(session, stack.base_url, tenant.key, model, max_tokens=1500, seen=seen)
        )
        await until(lambda: seen.tokens >= 20, timeout_s=60)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def engine_is_idle() -> bool:
        lines = httpx.get(metrics, timeout=60.0).text.splitlines()
        return all(
            float(line.rsplit(" ", 1)[1]) == 0
            for line in lines
            if line.startswith("vllm:num_requests_running")
        )

    await until(engine_is_idle)
    await settled_everything(stack, tenant.id)

    async def billed() -> bool:
        return seen.request_id in await rows_by_request(stack, tenant.id)

    await until(billed)
    row = (await rows_by_request(stack, tenant.id))[seen.request_id]
    generated = stack.engine_counters()["generation_tokens_total"] - before
    assert row["outcome"] == "client_cancelled"
    assert seen.tokens <= row["output_tokens"] <= generated < 1500
    assert row["cost"] > 0
    await money_is_sound(stack, tenant.id)
