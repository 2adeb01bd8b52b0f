"""A fleet behind the real vllm-router as one external replica: what is answered, billed and told when its parts die.

The router rebuilds each request and drops `continuous_usage_stats`. The simulated engines put several tokens into an
event, as vLLM does, so that events are no count of tokens.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai.resources.chat import AsyncCompletions

from billing.metering.frames import parse
from billing.metering.records import Checkpoint
from gateway.relay import ENGINE_FAILED_MESSAGE
from tests.support import load
from tests.support.invariants import money_is_sound, rows_by_request, settled_everything
from tests.support.stack import Stack, Tenant
from tests.support.vllm_router import MODEL, Fleet
from tests.support.waiting import until, until_sync

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

SEQUENCES = 4
"""That each engine runs at a time."""
TOOL: Any = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    made = Fleet(tmp_path_factory.mktemp("fleet"))
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.fixture(scope="module")
def stack(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    made = Stack(
        tmp_path_factory.mktemp("platform") / "data",
        *("--engine", "external", "--engine-url", fleet.router.url, "--engine-url", fleet.spare.url),
        *("--price-input", "2", "--price-output", "8", "--max-num-seqs", str(SEQUENCES)),
    )
    yield made.start()
    made.stop()


@pytest.fixture(scope="module")
def tenant(stack: Stack) -> Tenant:
    return stack.make_tenant("Fleet")


@pytest.fixture(autouse=True)
def whole(fleet: Fleet, stack: Stack) -> None:
    """Both engines run behind the router, and the engine beside it takes no requests."""
    fleet.mend()
    until_sync(lambda: replica(stack, fleet.spare.url)["state"] in ("ready", "draining"))
    stack.admin("POST", f"/pools/replicas/{replica(stack, fleet.spare.url)['replica_id']}/drain", json=WHY)
    until_sync(lambda: replica(stack, fleet.spare.url)["state"] == "draining")
    until_sync(lambda: replica(stack, fleet.router.url)["detail"] == "a fleet of 2 engines")


WHY = {"reason": "test of the fleet"}


def replica(stack: Stack, url: str) -> dict[str, Any]:
    [found] = [each for each in stack.admin("GET", "/pools")["replicas"] if each["url"] == url]
    return dict(found)


def queued(stack: Stack) -> int:
    return sum(queue["waiting"] for queue in stack.admin("GET", "/pools")["queues"])


@pytest.fixture
async def chats(stack: Stack, tenant: Tenant) -> AsyncIterator[AsyncCompletions]:
    async with openai.AsyncOpenAI(base_url=stack.base_url, api_key=tenant.key, max_retries=0) as made:
        yield made.chat.completions


async def billed(stack: Stack, tenant: Tenant, request_id: str) -> dict[str, Any]:
    await settled_everything(stack, tenant.id)

    async def row() -> dict[str, Any] | None:
        return (await rows_by_request(stack, tenant.id)).get(request_id)

    found: dict[str, Any] = await until(row)
    await money_is_sound(stack, tenant.id)
    return found


@asynccontextmanager
async def streams(
    stack: Stack, tenant: Tenant, count: int, max_tokens: int
) -> AsyncIterator[tuple[list[load.Seen], list["asyncio.Task[None]"]]]:
    """`count` open streams; those that still run at the end are cut by their client."""
    seen = [load.Seen() for _ in range(count)]
    async with load.session() as session:
        tasks = [
            asyncio.create_task(
                load.stream(session, stack.base_url, tenant.key, MODEL, max_tokens=max_tokens, seen=one)
            )
            for one in seen
        ]
        try:
            yield seen, tasks
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_whole_answers_and_streams(stack: Stack, tenant: Tenant, chats: AsyncCompletions) -> None:
    messages: Any = [{"role": "user", "content": "hello"}]
    raw = await chats.with_raw_response.create(model=MODEL, messages=messages, max_tokens=40, temperature=0)
    answer = raw.parse()
    assert answer.usage is not None
    row = await billed(stack, tenant, raw.headers["x-request-id"])
    assert (row["input_tokens"], row["output_tokens"]) == (answer.usage.prompt_tokens, 40)

    options: Any = {"include_usage": True}
    stream = await chats.create(
        model=MODEL, messages=messages, max_tokens=40, temperature=0, stream=True, stream_options=options
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == answer.choices[0].message.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 40
    assert chunks[-1].usage.prompt_tokens == answer.usage.prompt_tokens
    assert "token_ids" not in "".join(chunk.model_dump_json(exclude_unset=True) for chunk in chunks)

    told = await chats.create(
        model=MODEL, messages=messages, max_tokens=5, extra_body={"return_token_ids": True}
    )
    assert len(told.choices[0].model_dump()["token_ids"]) == 5


def counted(stack: Stack) -> dict[str, tuple[int, int]]:
    """Input and output tokens of the last checkpoint of each open request."""
    return {
        str(frame.record.request_id): (frame.record.usage.input, frame.record.usage.output)
        for path in (stack.data_dir / "spool").glob("*.spool")
        for frame in parse(path.read_bytes())
        if isinstance(frame.record, Checkpoint)
    }


@pytest.mark.promise(6)
async def test_a_cut_stream_is_billed_exactly(
    stack: Stack, tenant: Tenant, chats: AsyncCompletions, fleet: Fleet
) -> None:
    """The engines stop with their connections open, so that the client has all that came when it leaves."""
    answer = await chats.create(model=MODEL, messages=[{"role": "user", "content": "hello"}], max_tokens=1)
    assert answer.usage is not None
    for engine in fleet.engines:
        engine.failpoints(step_delay_s=0.005, stall_after_tokens=90)
    async with streams(stack, tenant, 2, 400) as (seen, _):
        await until(lambda: all(one.tokens > 40 for one in seen))
        prompt = answer.usage.prompt_tokens
        await until(
            lambda: all(counted(stack).get(one.request_id) == (prompt, one.tokens) for one in seen),
            what="the gateway counts what its client got",
        )
    for one in seen:
        row = await billed(stack, tenant, one.request_id)
        assert row["outcome"] == "client_cancelled"
        assert (row["input_tokens"], row["output_tokens"]) == (prompt, one.tokens)
        assert one.tokens > len(set(one.at)), "each event had one token: the test proves nothing"


@pytest.mark.promise(5)
async def test_engines_that_die(stack: Stack, tenant: Tenant, fleet: Fleet, chats: AsyncCompletions) -> None:
    for engine in fleet.engines:
        engine.failpoints(step_delay_s=0.01)
    async with streams(stack, tenant, 2 * SEQUENCES, 300) as (seen, tasks):
        await until(lambda: all(one.tokens for one in seen))
        fleet.engines[0].kill()
        await asyncio.wait(tasks)
    assert {bool(one.problem) for one in seen} == {False, True}
    for one in seen:
        row = await billed(stack, tenant, one.request_id)
        if not one.problem:
            assert (row["outcome"], row["output_tokens"]) == ("length", 300)
        else:
            assert one.problem["code"] == "engine_failed"
            assert (row["outcome"], row["cost"]) == ("engine_failed", 0)

    # The router finds the dead one out by itself.
    messages: Any = [{"role": "user", "content": "hello"}]
    for _ in range(4):
        assert (await chats.create(model=MODEL, messages=messages, max_tokens=3)).usage is not None

    # It answers 500 in plain text when an engine dies over an answer in one piece.
    fleet.engines[1].failpoints(die_after_tokens=20)
    with pytest.raises(openai.InternalServerError) as failed:
        await chats.create(model=MODEL, messages=messages, max_tokens=200, tools=[TOOL])
    assert (failed.value.status_code, failed.value.code) == (502, "engine_failed")
    assert ENGINE_FAILED_MESSAGE in failed.value.message
    row = await billed(stack, tenant, failed.value.response.headers["x-request-id"])
    assert (row["outcome"], row["cost"], row["attempts"]) == ("engine_failed", 0, 1)


async def test_what_fails_in_the_fleet_goes_to_another_replica(
    stack: Stack, tenant: Tenant, fleet: Fleet
) -> None:
    spare = replica(stack, fleet.spare.url)["replica_id"]
    stack.admin("POST", f"/pools/replicas/{spare}/resume", json=WHY)
    until_sync(lambda: replica(stack, fleet.spare.url)["state"] == "ready")
    for engine in fleet.engines:
        engine.failpoints(error_next=1000)
    async with streams(stack, tenant, 2 * SEQUENCES, 30) as (seen, tasks):
        await asyncio.wait(tasks)
    assert not [one.problem for one in seen if one.problem]
    rows = [await billed(stack, tenant, one.request_id) for one in seen]
    assert {row["output_tokens"] for row in rows} == {30}
    assert {row["replica_id"] for row in rows} == {spare}
    assert 2 in {row["attempts"] for row in rows}, "none went to the fleet at first: the test proves nothing"


async def test_a_dead_router(stack: Stack, tenant: Tenant, fleet: Fleet) -> None:
    for engine in fleet.engines:
        engine.failpoints(step_delay_s=0.01)
    async with streams(stack, tenant, 2, 400) as (seen, tasks):
        await until(lambda: all(one.tokens for one in seen))
        fleet.router.kill()
        await asyncio.wait(tasks)
    for one in seen:
        assert one.problem["code"] == "engine_failed"
        assert (await billed(stack, tenant, one.request_id))["cost"] == 0
    until_sync(lambda: replica(stack, fleet.router.url)["state"] == "failed")
    fleet.mend()
    until_sync(lambda: replica(stack, fleet.router.url)["detail"] == "a fleet of 2 engines")
    async with streams(stack, tenant, 1, 5) as ([served], tasks):
        await asyncio.wait(tasks)
    assert served.tokens == 5


async def test_a_fleet_has_the_places_of_its_engines(stack: Stack, tenant: Tenant, fleet: Fleet) -> None:
    """What does not fit waits in the fair queue; when an engine is gone, so are its places."""
    for engine in fleet.engines:
        engine.failpoints(step_delay_s=0.02)
    assert await first_answered(stack, tenant, 2 * SEQUENCES + 3, waiting=3) == 2 * SEQUENCES
    fleet.engines[1].kill()
    until_sync(lambda: replica(stack, fleet.router.url)["detail"] == "a fleet of 1 engine")
    assert await first_answered(stack, tenant, SEQUENCES + 3, waiting=3) == SEQUENCES


async def first_answered(stack: Stack, tenant: Tenant, count: int, *, waiting: int) -> int:
    """How many of `count` long streams have begun while `waiting` are queued."""
    async with streams(stack, tenant, count, 2000) as (seen, _):
        await until(lambda: queued(stack) == waiting)
        await until(lambda: sum(bool(one.tokens) for one in seen) >= count - waiting)
        assert queued(stack) == waiting
        begun = sum(bool(one.tokens) for one in seen)
    until_sync(lambda: queued(stack) == 0)
    return begun
