"""SIGKILL of the process that runs a response in the background (promises 1, 5)."""

import os
import signal
from collections.abc import Callable

import openai
import psutil
import pytest

from tests.support.invariants import money_is_sound, rows_by_request, settled_everything
from tests.support.stack import Stack
from tests.support.waiting import until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(420)]


@pytest.mark.promise(1, 5)
async def test_a_killed_process_fails_its_responses_and_bills_them_as_interrupted(
    make_stack: Callable[..., Stack],
) -> None:
    stack = make_stack("--api-workers", "2")
    tenant = stack.make_tenant("Kill")
    stack.failpoints(step_delay_s=0.05)
    client = openai.AsyncOpenAI(base_url=stack.base_url, api_key=tenant.key, max_retries=4)
    stream = await client.responses.create(
        model=str(stack.ready["model"]), input="story", max_output_tokens=400, background=True, stream=True
    )
    events = aiter(stream)
    response_id = (await anext(events)).response.id
    async for event in events:
        if event.type == "response.output_text.delta" and event.sequence_number > 40:
            break
    await stream.close()
    workers = [psutil.Process(pid) for pid in stack.pids("api")]
    for worker in workers:  # which of them runs the response is not known
        os.kill(worker.pid, signal.SIGKILL)
    psutil.wait_procs(workers, timeout=60)
    connection = await stack.connect()
    try:
        # No process renews it any more; the test does not wait for the minute to pass.
        moved = await connection.execute(
            "UPDATE stored_responses SET runs_until = now() WHERE runs_until > now()"
        )
        assert moved == "UPDATE 1"
    finally:
        await connection.close()

    async def failed() -> bool:
        try:
            return (await client.responses.retrieve(response_id)).status == "failed"
        except openai.APIConnectionError:  # the workers start again
            return False

    await until(failed, what="the response has failed", timeout_s=120)
    assert (await client.responses.cancel(response_id)).status == "failed"
    again = await client.responses.retrieve(response_id, stream=True)
    replayed = [event async for event in again]
    assert replayed[-1].type == "response.failed"
    assert [event.sequence_number for event in replayed] == list(range(len(replayed)))
    await settled_everything(stack, tenant.id)
    [row] = (await rows_by_request(stack, tenant.id)).values()
    assert row["outcome"] == "interrupted"
    assert 0 < row["output_tokens"] <= 400
    await money_is_sound(stack, tenant.id)
    await client.close()
