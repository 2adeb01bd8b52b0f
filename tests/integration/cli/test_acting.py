"""Load on a running platform rises and falls: a host is created by the autoscaler's plan, serves, is drained and
destroyed, and no request fails."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import psutil
import pytest

from tests.support.added_model import PRICE
from tests.support.live_pool import PoolView, watching
from tests.support.load import Seen, stream
from tests.support.stack import Stack
from tests.support.waiting import until
from workers.wire import ReplicaState

NAME = "acme/slow"
KIND = "gpu-h100x1-80gb"
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
PROFILE = """
[figures]
prefill_tokens_per_s = { value = 500, basis = "assumed", date = 2026-11-28, source = "a test" }
step_base_s = { value = 0.01, basis = "assumed", date = 2026-11-28, source = "a test" }
"""
PROMPT = "abc " * 300
SETTLE_S = 240.0


@asynccontextmanager
async def load(stack: Stack, key: str, every_s: float, seen: list[Seen]) -> AsyncIterator[None]:
    """Streaming requests, one every `every_s` seconds; all are waited for at the end."""
    stop, open_requests = asyncio.Event(), []

    async def send(session: aiohttp.ClientSession) -> None:
        while not stop.is_set():
            seen.append(Seen())
            request = stream(
                session,
                stack.base_url,
                key,
                NAME,
                max_tokens=8,
                seen=seen[-1],
                prompt=f"{len(seen)} {PROMPT}",
            )
            open_requests.append(asyncio.create_task(request))
            await asyncio.wait({asyncio.create_task(stop.wait())}, timeout=every_s)

    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        sending = asyncio.create_task(send(session))
        yield
        stop.set()
        await sending
        await asyncio.gather(*open_requests)


async def serving(pool: PoolView, count: int) -> None:
    """Wait until so many replicas of the model serve, on hosts of their own."""

    def ready() -> bool:
        hosts = {each.replica_id for each in pool.in_state(ReplicaState.READY) if each.model == NAME}
        return len(hosts) == count

    await until(ready, SETTLE_S, f"{count} replicas of {NAME} serve")


@pytest.mark.timeout(1800)
async def test_a_host_comes_with_the_load_and_goes_with_it(tmp_path: Path) -> None:
    weights = tmp_path / "slow"
    weights.mkdir()
    (weights / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "profile.toml").write_text(PROFILE)
    stack = Stack(
        tmp_path / "data",
        *("--engine", "sim"),
        env={"PENSTOCK_AUTOSCALER_STABILIZATION_S": "10", "PENSTOCK_AUTOSCALER_HOST_IDLE_S": "4"},
    ).start()
    seen: list[Seen] = []
    try:
        await asyncio.to_thread(prepare, stack, weights, tmp_path / "profile.toml")
        tenant = await asyncio.to_thread(stack.make_tenant, "River")
        async with watching(stack) as pool:
            await serving(pool, 1)  # the minimum
            async with load(stack, tenant.key, 1.0, seen):
                await serving(pool, 2)
                before = len(seen)
                await until(lambda: len(seen) > before + 10, SETTLE_S)
            async with load(stack, tenant.key, 5.0, seen):
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


def prepare(stack: Stack, weights: Path, profile: Path) -> None:
    """Offer the model, with a price and limits, and switch acting on."""
    words = ("--weights", str(weights), "--host-kind", KIND, "--gpus", "1", "--arg", "max-model-len=2048")
    stack.command("models", "add", NAME, *words, "--profile", str(profile), "--unchecked")
    stack.admin("POST", "/prices", json={"model": NAME, **PRICE, "below_cost": True})
    stack.command("models", "set-targets", NAME, "--ttft-s", "10", "--tpot-s", "5")
    limits = ("--min", "1", "--max", "2", "--host-kind", KIND, "--month-budget", "1000")
    stack.command("models", "set-scaling", NAME, *limits, "--reason", "test")
    stack.command("pools", "set-acting", "on", "--reason", "test")
