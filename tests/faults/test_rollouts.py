"""Rollouts in a whole platform under load: a good version fails no request, bad ones are rolled back by themselves."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from tests.support import load
from tests.support.live_pool import PoolView, outcomes, rows_match, watching
from tests.support.load import Seen
from tests.support.stack import Stack, Tenant
from tests.support.waiting import until
from workers.engine_spec import EngineSpec
from workers.wire import ReplicaState

pytestmark = [pytest.mark.faults, pytest.mark.timeout(420)]

MODEL = "penstock/tiny"
CLIENTS = 1
QUICK = {"min_ready_s": 0.5, "bake_s": 1.0, "drain_s": 60.0, "progress_deadline_s": 60.0}
FAULTS = "wrong:garbled=true;slow:step_delay_s=0.05"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A platform with two replicas, and engine versions with wrong weights or slow steps."""
    made = Stack(
        tmp_path_factory.mktemp("rollouts") / "data",
        *("--engine", "sim", "--replicas", "2"),
        env={"PENSTOCK_SIM_VERSION_FAILPOINTS": FAULTS},
    )
    try:
        yield made.start()
    finally:
        made.stop()


@asynccontextmanager
async def under_load(stack: Stack, tenant: Tenant) -> AsyncIterator[list[Seen]]:
    """Clients that ask one request after the other; gives what they have seen."""
    seen: list[Seen] = []
    stop = asyncio.Event()

    async def client(number: int) -> None:
        async with load.session() as session:
            while not stop.is_set():
                one = Seen()
                await load.stream(
                    session,
                    stack.base_url,
                    tenant.key,
                    MODEL,
                    max_tokens=40,
                    seen=one,
                    prompt=f"hello {number}",
                )
                seen.append(one)

    clients = [asyncio.create_task(client(number)) for number in range(CLIENTS)]
    try:
        yield seen
    finally:
        stop.set()
        await asyncio.gather(*clients)


async def start(stack: Stack, version: str, **strategy: Any) -> None:
    body = {
        "model": MODEL,
        "engine_version": version,
        "strategy": {**QUICK, **strategy},
        "reason": "the test",
    }
    await asyncio.to_thread(stack.admin, "POST", "/models/rollouts", json=body)


async def last(stack: Stack) -> Any:
    return (await asyncio.to_thread(stack.admin, "GET", f"/models/rollouts?model={MODEL}&limit=1"))[0]


async def ended(stack: Stack) -> Any:
    async def found() -> Any:
        rollout = await last(stack)
        return rollout if rollout["ended_at"] else None

    return await until(found, timeout_s=90.0)


async def served_by(stack: Stack, tenant: Tenant) -> set[str]:
    """The versions whose engines have answered an organisation's requests, by its usage rows."""
    connection = await stack.connect()
    try:
        rows = await connection.fetch(
            "SELECT DISTINCT e.version FROM usage u JOIN engine_counters e USING (boot_id) WHERE u.tenant_id = $1",
            UUID(tenant.id),
        )
    finally:
        await connection.close()
    return {row["version"] for row in rows}


async def versions(pool: PoolView) -> set[str]:
    """The versions of both replicas, once both are shown to serve: the view is a moment older than the rollout."""
    await until(lambda: len(pool.in_state(ReplicaState.READY)) == 2)
    return {replica.version for replica in pool.now.replicas}


async def test_versions_are_rolled_out_and_bad_ones_rolled_back_under_load(stack: Stack) -> None:
    tenant, early = stack.make_tenant("steady"), stack.make_tenant("early")
    good = EngineSpec(engine_version="0.33.0").version
    async with watching(stack) as pool:
        await until(lambda: len(pool.in_state(ReplicaState.READY)) == 2)
        async with under_load(stack, tenant) as seen:
            await until(lambda: len(seen) >= CLIENTS)
            fewest = 2

            def ready() -> bool:
                nonlocal fewest
                fewest = min(fewest, len(pool.in_state(ReplicaState.READY)))
                return all(one.version == good for one in pool.in_state(ReplicaState.READY))

            await start(stack, "0.33.0")
            await until(ready)
            first = await ended(stack)
            assert (first["state"], first["updated"], first["new_version"]) == ("promoted", 2, good)
            assert fewest >= 1
            assert await versions(pool) == {good}

            await start(stack, "wrong")
            second = await ended(stack)
            assert second["state"] == "rolled_back"
            assert "has not the stored greedy answer" in second["reason"]
            assert second["new"]["requests"] == 0

            async with under_load(stack, early) as theirs:
                await start(stack, "slow", canary_tenants=[early.id], min_requests=5)
                third = await ended(stack)
            assert third["state"] == "rolled_back"
            assert "the new version is worse: its median time to" in third["reason"]
            assert third["new"]["requests"] >= 5
            assert await versions(pool) == {good}
        for who, whole in ((tenant, seen), (early, theirs)):
            assert outcomes(whole) == {"answered": len(whole)}
            await rows_match(stack, who.id, whole)
    assert await served_by(stack, early) == {good, EngineSpec(engine_version="slow").version}
    shown = stack.command("models", "rollout", "status", MODEL)
    assert "What requests saw of both versions" in shown
    acts = json.loads(stack.command("pools", "timeline", "--model", MODEL, "--json"))
    assert [each["act"] for each in acts if each["target"].startswith("version ")] == [
        *("rolled_back", "rolling_back") * 2,
        "promoted",
    ]
