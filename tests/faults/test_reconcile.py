"""Engines' counters against usage rows when clients leave and processes die: nothing stays unexplained."""

import asyncio
import time
from collections.abc import Callable

import httpx
import pytest

from tests.faults.test_kills import STREAMS, TOKENS, kill, under_load
from tests.support import load
from tests.support.invariants import settled_everything
from tests.support.reconciling import reconciled, stretches
from tests.support.stack import Stack, Tenant

pytestmark = [pytest.mark.faults, pytest.mark.timeout(420)]

SCRAPE_S = 2.0
"""An engine is scraped every second; a busy machine may take twice as long."""


async def test_an_engine_killed_under_streams_leaves_nothing_unexplained(
    make_stack: Callable[..., Stack],
) -> None:
    stack = make_stack()
    tenant = stack.make_tenant("Kill")
    died = 0.0

    def hurt() -> None:
        nonlocal died
        died = time.monotonic()
        kill(stack.pids("engine"))

    seen = await under_load(stack, tenant, hurt)
    await settled_everything(stack, tenant.id)
    engines = await _with_two_engines(stack)
    assert [(one["unexplained_prompt"], one["unexplained_generation"]) for one in engines] == [(0, 0)] * 2
    (dead,) = [one for one in engines if one["ended_at"] is not None]
    lines = stretches(stack, dead["boot_id"])
    in_one_scrape = sum(one.tokens - one.tokens_before(died - SCRAPE_S) for one in seen)
    assert 0 <= lines["generation"]["unobserved"] <= in_one_scrape
    assert lines["prompt"]["unobserved"] == 0, "prompts were read long before it died"
    assert lines["generation"]["engine_failed"] >= sum(one.tokens for one in seen)


async def _with_two_engines(stack: Stack) -> list[dict]:
    """Both incarnations, once the second one serves and is compared."""
    for _ in range(360):
        await asyncio.sleep(0.5)
        engines = stack.admin("GET", "/reconcile/engines")["data"]
        if len(engines) == 2:
            try:
                return await reconciled(stack, timeout_s=60)
            except httpx.HTTPError:
                continue  # the new engine does not answer yet
    raise AssertionError("the agent brought no engine back")


async def test_an_api_process_killed_leaves_nothing_unexplained(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack("--api-workers", "2")
    tenant = stack.make_tenant("Kill")
    victim = stack.pids("api")[0]
    seen = await under_load(stack, tenant, lambda: kill([victim]))
    assert any(not one.finished for one in seen)
    await settled_everything(stack, tenant.id)
    (engine,) = await reconciled(stack)
    assert (engine["unexplained_prompt"], engine["unexplained_generation"]) == (0, 0)
    lines = stretches(stack, engine["boot_id"])
    assert lines["generation"]["billed"] > 0
    assert lines["generation"]["cancelled_tail"] > 0, "what came after the last checkpoint is a tail"
    assert lines["generation"]["unobserved"] == 0


async def test_clients_that_leave_and_several_choices_are_explained_and_a_lost_row_is_not(
    make_stack: Callable[..., Stack],
) -> None:
    stack = make_stack()
    tenant = stack.make_tenant("Leave")
    await _leave_and_choose(stack, tenant)
    await settled_everything(stack, tenant.id)
    (engine,) = await reconciled(stack)
    assert (engine["unexplained_prompt"], engine["unexplained_generation"]) == (0, 0)
    assert stretches(stack, engine["boot_id"])["prompt"]["choices"] > 0

    lost = load.Seen()
    async with load.session() as session:
        await load.patient_stream(
            session,
            stack.base_url,
            tenant.key,
            str(stack.ready["model"]),
            max_tokens=30,
            seen=lost,
            prompt="lost",
        )
    await settled_everything(stack, tenant.id)
    database = await stack.connect()
    try:
        await database.execute("DELETE FROM usage_rows WHERE request_id = $1::uuid", lost.request_id)
    finally:
        await database.close()
    (engine,) = await reconciled(stack)
    assert engine["unexplained_generation"] == lost.tokens
    assert engine["unexplained_prompt"] > 0
    traced = stack.admin("GET", f"/reconcile/engines/{engine['boot_id']}/trace")["data"]
    assert [row["request_id"] for row in traced if row["cause"] == "missing"] == [lost.request_id]


async def _leave_and_choose(stack: Stack, tenant: Tenant) -> None:
    """Streams whose clients leave after some tokens, whole ones beside them, and requests for two choices."""
    model = str(stack.ready["model"])
    stack.failpoints(step_delay_s=0.02)
    seen = [load.Seen() for _ in range(STREAMS)]
    async with load.session() as session:
        tasks = [
            asyncio.create_task(
                load.patient_stream(
                    session,
                    stack.base_url,
                    tenant.key,
                    model,
                    max_tokens=TOKENS // 4,
                    seen=one,
                    prompt=f"tale {n}",
                )
            )
            for n, one in enumerate(seen)
        ]
        body = {"model": model, "max_tokens": 12, "n": 2, "messages": [{"role": "user", "content": "two"}]}
        headers = {"Authorization": f"Bearer {tenant.key}"}
        for _ in range(3):
            async with session.post(
                f"{stack.base_url}/chat/completions", json=body, headers=headers
            ) as answer:
                assert answer.status == 200, await answer.text()
                assert len((await answer.json())["choices"]) == 2
        for task, one in list(zip(tasks, seen, strict=True))[::3]:
            await one.first_token.wait()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    stack.failpoints()
