"""Scale to zero in a whole platform: requests for a model that sleeps are held while it wakes, and lose nothing."""

import asyncio
from collections.abc import Iterator

import pytest

from core.ids import uuid7
from tests.support import load
from tests.support.live_pool import PoolView, rows_match, watching
from tests.support.load import Seen
from tests.support.stack import Stack, Tenant
from tests.support.waiting import until
from workers.wire import ReplicaCommand, ReplicaState

pytestmark = [pytest.mark.faults, pytest.mark.timeout(420)]

MODEL = "penstock/tiny"
KEEP_ALIVE_S = 5.0
"""Seconds of silence after which a stream gets a comment."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A platform with one replica. Requests wait less for a wake than the catalog says of sleep level 2 (45 s)."""
    made = Stack(
        tmp_path_factory.mktemp("zero") / "data",
        *("--engine", "sim"),
        env={"PENSTOCK_WAKE_DEADLINE_S": "40", "PENSTOCK_QUEUE_DEADLINE_S": "40"},
    )
    try:
        yield made.start()
    finally:
        made.stop()


async def put_to_sleep(pool: PoolView, level: int) -> str:
    """Put the replica to sleep; its id."""
    await until(lambda: pool.in_state(ReplicaState.READY))
    [status] = pool.now.replicas
    command = ReplicaCommand(str(uuid7()), status.replica_id, "sleep", 60.0, level)
    result = await pool._client.command(command)
    assert result.ok, result.message
    await until(lambda: pool.in_state(ReplicaState.ASLEEP))
    return status.replica_id


async def asked(stack: Stack, tenant: Tenant) -> Seen:
    seen = Seen()
    async with load.session() as session:
        await load.stream(session, stack.base_url, tenant.key, MODEL, max_tokens=10, seen=seen)
    return seen


async def test_a_request_wakes_the_model_is_kept_alive_and_is_billed_once(stack: Stack) -> None:
    tenant = stack.make_tenant("sleeper")
    async with watching(stack) as pool:
        stack.failpoints(wake_s=2 * KEEP_ALIVE_S)
        name = await put_to_sleep(pool, 1)
        await until(lambda: [view.wakes for view in pool.now.models if view.model == MODEL] == [True])
        body = {
            "model": MODEL,
            "max_tokens": 10,
            "stream": True,
            "messages": [{"role": "user", "content": "hello"}],
        }
        headers = {"Authorization": f"Bearer {tenant.key}"}
        async with (
            load.session() as session,
            session.get(f"{stack.base_url}/models", headers=headers) as models,
            session.post(f"{stack.base_url}/chat/completions", json=body, headers=headers) as answer,
        ):
            assert MODEL in [each["id"] for each in (await models.json())["data"]]
            assert answer.status == 200
            text = await answer.text()
            request_id = answer.headers["x-request-id"]
        assert text.index(": keep-alive") < text.index("data: ")
        assert text.rstrip().endswith("data: [DONE]")
        await until(lambda: pool.replica(name).times.wake_1.last_s > 2 * KEEP_ALIVE_S)
        stack.failpoints()
        second = await asked(stack, tenant)
        first = Seen(status=200, request_id=request_id, tokens=10, finished=True)
        rows = await rows_match(stack, tenant.id, [first, second])
        assert rows[request_id]["cost"] == rows[second.request_id]["cost"]


async def test_a_wake_that_fails_loses_no_request(stack: Stack) -> None:
    tenant = stack.make_tenant("unlucky")
    async with watching(stack) as pool:
        stack.failpoints(wake_garbles=True)
        name = await put_to_sleep(pool, 1)
        before = pool.replica(name)
        seen = await asyncio.gather(*(asked(stack, tenant) for _ in range(3)))
        assert [one.tokens for one in seen] == [10, 10, 10]
        after = pool.replica(name)
        assert (after.restarts, after.boot_id != before.boot_id) == (before.restarts + 1, True)
        await rows_match(stack, tenant.id, list(seen))


async def test_a_wake_longer_than_the_deadline_is_refused_at_once_with_the_time(stack: Stack) -> None:
    tenant = stack.make_tenant("hasty")
    async with watching(stack) as pool:
        stack.failpoints()
        await put_to_sleep(pool, 2)
        seen = await asked(stack, tenant)
        assert seen.status == 503
        assert (seen.problem["details"]["reason"], seen.headers["retry-after"]) == ("waking", "45")
        assert "needs about 45 s to serve, more than the 40 s allowed" in str(seen.problem["message"])
        await until(lambda: pool.in_state(ReplicaState.READY))  # it was woken for the next one
        later = await asked(stack, tenant)
        assert later.tokens == 10
        await rows_match(stack, tenant.id, [later])  # the refusal has no row
