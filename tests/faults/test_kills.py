"""SIGKILL of one process after another, mid-stream under load (promises 1, 2, 4, 5, 7)."""

import asyncio
import os
import signal
from collections.abc import Callable

import pytest

from tests.support import load
from tests.support.invariants import admitted, money_is_sound, rows_by_request, settled_everything
from tests.support.stack import Stack, Tenant
from tests.support.waiting import until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(420)]

STREAMS = 24
TOKENS = 400


async def under_load(stack: Stack, tenant: Tenant, hurt: Callable[[], None]) -> list[load.Seen]:
    """Run STREAMS streams, hurt something once each is well under way, and wait for all to end.

    A token takes 20 ms or more, so a stream lasts at least eight seconds and is hurt after two.
    """
    seen = [load.Seen() for _ in range(STREAMS)]
    model = str(stack.ready["model"])
    stack.failpoints(step_delay_s=0.02)
    async with load.session() as session:
        tasks = [
            asyncio.create_task(
                load.patient_stream(
                    session,
                    stack.base_url,
                    tenant.key,
                    model,
                    max_tokens=TOKENS,
                    seen=one,
                    prompt=f"story {n}",
                )
            )
            for n, one in enumerate(seen)
        ]
        await until(lambda: all(one.tokens >= 100 for one in seen), timeout_s=90)
        hurt()
        await asyncio.gather(*tasks)
    return seen


async def every_admitted_request_has_one_row(
    stack: Stack, tenant: Tenant, seen: list[load.Seen]
) -> dict[str, dict]:
    """Exactly one row per admitted request, and sound money; returns the rows by request id."""
    await settled_everything(stack, tenant.id)
    wanted = {one.request_id for one in admitted(seen)}

    async def all_there() -> bool:
        return wanted <= set(await rows_by_request(stack, tenant.id))

    await until(all_there, timeout_s=60)
    await money_is_sound(stack, tenant.id)
    return await rows_by_request(stack, tenant.id)


def kill(pids: list[int]) -> None:
    """SIGKILL each of `pids`."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.promise(1, 5, 7)
async def test_api_process_killed_bills_its_last_checkpoint(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack("--api-workers", "2")
    tenant = stack.make_tenant("Kill")
    victim = stack.pids("api")[0]
    seen = await under_load(stack, tenant, lambda: kill([victim]))
    assert any(not one.finished for one in seen), (
        "the killed process carried no stream: the test proves nothing"
    )
    rows = await every_admitted_request_has_one_row(stack, tenant, seen)
    for one in admitted(seen):
        row = rows[one.request_id]
        if one.finished:
            assert row["output_tokens"] == one.tokens
        else:
            # Never more than was delivered, and at most one checkpoint (a second, and one for a busy machine) less.
            assert row["outcome"] == "interrupted"
            assert one.tokens_before(one.at[-1] - 2.0) <= row["output_tokens"] <= TOKENS
            assert row["output_tokens"] > 0


@pytest.mark.promise(1, 7)
async def test_scheduler_killed_costs_no_request(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack("--api-workers", "2")
    tenant = stack.make_tenant("Kill")
    seen = await under_load(stack, tenant, lambda: kill(stack.pids("scheduler")))
    rows = await every_admitted_request_has_one_row(stack, tenant, seen)
    assert all(one.finished for one in seen)
    assert all(rows[one.request_id]["output_tokens"] == one.tokens == TOKENS for one in seen)


@pytest.mark.promise(1, 7)
async def test_jobs_killed_costs_nothing(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack()
    tenant = stack.make_tenant("Kill")
    seen = await under_load(stack, tenant, lambda: kill(stack.pids("jobs")))
    rows = await every_admitted_request_has_one_row(stack, tenant, seen)
    assert all(rows[one.request_id]["output_tokens"] == one.tokens == TOKENS for one in seen)


@pytest.mark.promise(1, 7)
async def test_engine_killed_costs_the_customer_nothing(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack()
    tenant = stack.make_tenant("Kill")
    seen = await under_load(stack, tenant, lambda: kill(stack.pids("engine")))
    assert all(one.error for one in seen), "a stream hid the engine's death from its client"
    rows = await every_admitted_request_has_one_row(stack, tenant, seen)
    for one in seen:
        row = rows[one.request_id]
        assert row["outcome"] == "engine_failed"
        assert row["cost"] == 0
        assert row["output_tokens"] >= one.tokens
    # The agent brings the engine back and service resumes.
    again = load.Seen()

    async def works_again() -> bool:
        nonlocal again
        again = load.Seen()
        async with load.session() as session:
            await load.stream(
                session, stack.base_url, tenant.key, str(stack.ready["model"]), max_tokens=4, seen=again
            )
        return again.finished

    await until(works_again, timeout_s=120)
