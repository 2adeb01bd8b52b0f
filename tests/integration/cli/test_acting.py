"""Load on a running platform rises and falls: a host is created by the autoscaler's plan, serves, is drained and
destroyed, and no request fails."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support.added_model import PRICE
from tests.support.live_pool import PoolView, watching
from tests.support.load import Seen
from tests.support.slow_model import NAME, SET_ACTING, SET_SCALING, SET_TARGETS, add_command, load
from tests.support.stack import Stack
from tests.support.waiting import until
from workers.wire import ReplicaState

SETTLE_S = 240.0


async def serving(pool: PoolView, count: int) -> None:
    """Wait until so many replicas of the model serve, on hosts of their own."""

    def ready() -> bool:
        hosts = {each.replica_id for each in pool.in_state(ReplicaState.READY) if each.model == NAME}
        return len(hosts) == count

    await until(ready, SETTLE_S, f"{count} replicas of {NAME} serve")


@pytest.mark.timeout(1800)
async def test_a_host_comes_with_the_load_and_goes_with_it(tmp_path: Path) -> None:
    stack = Stack(
        tmp_path / "data",
        *("--engine", "sim"),
        env={"PENSTOCK_AUTOSCALER_STABILIZATION_S": "10", "PENSTOCK_AUTOSCALER_HOST_IDLE_S": "4"},
    ).start()
    seen: list[Seen] = []
    try:
        await asyncio.to_thread(prepare, stack, tmp_path)
        tenant = await asyncio.to_thread(stack.make_tenant, "River")
        async with watching(stack) as pool:
            await serving(pool, 1)  # the minimum
            async with load(stack.base_url, tenant.key, 1.0, seen):
                await serving(pool, 2)
                before = len(seen)
                await until(lambda: len(seen) > before + 10, SETTLE_S)
            async with load(stack.base_url, tenant.key, 5.0, seen):
                await until(lambda: len(pool.now.hosts) == 2, SETTLE_S, "one host is destroyed")
                await serving(pool, 1)
        failed = [(one.status, one.error, one.problem) for one in seen if not one.finished]
        assert failed == []
        acts = json.loads(await asyncio.to_thread(stack.command, "pools", "timeline", "--json"))
        hosts = json.loads(await asyncio.to_thread(stack.command, "hosts", "list", "--ended", "--json"))
    finally:
        stack.stop()
        end_hosts(tmp_path / "data" / "hosts")
    done = [(row["act"], row["result"]) for row in reversed(acts)]
    assert done == [("create", "done")] * 2 + [("stop", "done"), ("destroy", "done")], acts
    assert all(row["reason"] and row["model"] == NAME for row in acts)
    created = {host["name"]: host["status"] for host in hosts if host["provider"] == "local"}
    [destroyed] = [row["target"] for row in acts if row["act"] == "destroy"]
    assert len(created) == 2
    assert created[destroyed] in ("ended", "running")


def end_hosts(directory: Path) -> None:
    """End the agents of local hosts, which outlive the platform."""
    for path in directory.glob("*/host.json"):
        with suppress(psutil.NoSuchProcess):
            agent = psutil.Process(json.loads(path.read_text())["process"]["pid"])
            agent.terminate()
            agent.wait(60)


def prepare(stack: Stack, directory: Path) -> None:
    """Offer the model, with a price and limits, and switch acting on."""
    stack.command(*add_command(directory))
    stack.admin("POST", "/prices", json={"model": NAME, **PRICE, "below_cost": True})
    for words in (SET_TARGETS, SET_SCALING, SET_ACTING):
        stack.command(*words)
