"""A key that requires a region in which nothing serves: a host is created there for it, serves it, and goes again."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from scheduler.wire import PlanView
from tests.integration.cli.test_acting import end_hosts, prepare, serving
from tests.support.live_pool import PoolView, watching
from tests.support.slow_model import NAME, SET_WAKE_DEADLINE
from tests.support.stack import Stack, Tenant
from tests.support.waiting import until

SETTLE_S = 240.0
HERE, THERE = "here", "tor1"


async def ask(client: httpx.AsyncClient, key: str) -> httpx.Response:
    body = {"model": NAME, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    return await client.post("/chat/completions", json=body, headers={"authorization": f"Bearer {key}"})


def region_key(stack: Stack, tenant: Tenant, region: str) -> str:
    body = {"project_id": tenant.project_id, "name": region, "regions": [region]}
    return str(stack.admin("POST", f"/tenants/{tenant.id}/keys", json=body)["secret"])


async def plan_of(stack: Stack) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await asyncio.to_thread(stack.command, "pools", "plan", "--json"))
    return found


def comes(pool: PoolView) -> bool:
    """Whether a replica that bound requests need serves or is on its way."""
    plan = pool.now.plan or PlanView()
    return any(place.pending + place.awake for row in plan.models for place in row.places)


@pytest.mark.timeout(1800)
async def test_a_host_is_created_where_a_key_requires_it(tmp_path: Path) -> None:
    stack = Stack(
        tmp_path / "data",
        *("--engine", "sim"),
        env={
            "PENSTOCK_AUTOSCALER_STABILIZATION_S": "10",
            "PENSTOCK_AUTOSCALER_HOST_IDLE_S": "4",
            "PENSTOCK_HOST_PLACES": f"*=local/{HERE},local/{THERE}",
        },
    ).start()
    try:
        await asyncio.to_thread(prepare, stack, tmp_path)
        await asyncio.to_thread(stack.command, *SET_WAKE_DEADLINE)
        tenant = await asyncio.to_thread(stack.make_tenant, "River")
        bound = await asyncio.to_thread(region_key, stack, tenant, THERE)
        nowhere = await asyncio.to_thread(region_key, stack, tenant, "fra1")
        async with (
            watching(stack) as pool,
            httpx.AsyncClient(base_url=stack.base_url, timeout=600.0) as client,
        ):
            await serving(pool, 1)
            here = await ask(client, tenant.key)
            assert (here.status_code, here.headers["x-penstock-region"]) == (200, HERE)

            refused = await ask(client, nowhere)
            error = refused.json()["error"]
            assert refused.status_code == 503, error
            assert "no host in fra1 serves model" in error["message"]
            assert "none may be created in fra1" in error["message"]

            first = await ask(client, bound)
            assert first.status_code == 503, first.text
            assert first.json()["error"]["details"]["reason"] == "no_replica_in_region"
            assert int(first.headers["retry-after"]) > 1
            await until(lambda: comes(pool), SETTLE_S, "a host is being created for it")
            held = await ask(client, bound)
            assert (held.status_code, held.headers["x-penstock-region"]) == (200, THERE), held.text
            [model] = [row for row in (await plan_of(stack))["models"] if row["model"] == NAME]
            [place] = model["places"]
            assert (place["regions"], place["awake"], place["target"]) == ([THERE], 1, 1)
            # It serves what may run anywhere, too, so the first one goes.
            gone = "the host in the other region is destroyed"
            await until(lambda: HERE not in {host.region for host in pool.now.hosts}, SETTLE_S, gone)
            anywhere = await ask(client, tenant.key)
            assert (anywhere.status_code, anywhere.headers["x-penstock-region"]) == (200, THERE)
        acts = json.loads(await asyncio.to_thread(stack.command, "pools", "timeline", "--json"))
    finally:
        stack.stop()
        end_hosts(tmp_path / "data" / "hosts")
    created = [(row["target"].split("/")[1], row["reason"]) for row in acts if row["act"] == "create"]
    assert [region for region, _ in created] == [THERE, HERE]
    assert f"1 more in {THERE}" in created[0][1]
    [destroyed] = [row for row in acts if (row["act"], row["result"]) == ("destroy", "done")]
    assert destroyed["reason"].startswith(f"in {HERE}: ")
