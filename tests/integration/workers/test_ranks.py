"""The agent with a simulated engine of two ranks and a real scheduler: commands, events, the end of the engine."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from gateway.schemas.chat import parse_chat
from scheduler.client import SchedulerClient
from scheduler.core.fleet import Fleet
from scheduler.service import SchedulerService
from sim.engine.tokenizer import SimulatedTokenizer
from tests.support import scheduling
from tests.support.waiting import until
from workers.ranks import RANK_HEADER
from workers.token_blocks import token_block_hashes
from workers.wire import ReplicaCommand, ReplicaState, ReplicaStatus

CHECKOUT = Path(__file__).resolve().parents[3]
MODEL = "penstock/tiny"
BODY = b'{"model": "penstock/tiny", "messages": [{"role": "user", "content": "%s"}], "max_tokens": 4}'
STORY = b"the river runs to the sea " * 40
BLOCK = 32
"""Tokens of a block of the profile."""


class Rig:
    """One machine whose agent runs one engine with two ranks."""

    def __init__(self, service: SchedulerService, client: SchedulerClient) -> None:
        self.service, self.client = service, client

    @property
    def fleet(self) -> Fleet:
        return self.service.state.fleet

    def states(self) -> list[ReplicaState]:
        """The states of the targets, by name."""
        return [replica.state for _, replica in sorted(self.fleet.replicas.items())]

    async def ready(self) -> ReplicaStatus:
        await until(lambda: self.states() == [ReplicaState.READY] * 2, 60.0, "both ranks ready")
        (shown,) = (await self.client.fresh_snapshot()).replicas
        return shown

    async def ask(self, url: str, rank: int, salt: str) -> set[int]:
        """Have one rank answer a prompt; returns the hashes of its blocks."""
        prepared = parse_chat(BODY % STORY)
        headers = {RANK_HEADER: str(rank), "Authorization": "Bearer engine-key"}
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                f"{url}/v1/chat/completions", data=prepared.engine_body(MODEL, salt), headers=headers
            ) as answer,
        ):
            assert answer.status == 200, await answer.text()
            await answer.read()
        tokens = SimulatedTokenizer().tokenize(prepared, salt, reasoning=False)
        return set(token_block_hashes(tokens, BLOCK, salt))

    def holds(self, rank: int, hashes: set[int]) -> bool:
        """Whether the scheduler knows all of these blocks on that rank, and none on the other."""
        found = [self._hits(each, hashes) for each in range(2)]
        return found[rank] == len(hashes) and found[1 - rank] == 0

    def _hits(self, rank: int, hashes: set[int]) -> int:
        replica = self.fleet.targets_of(self.engine_id)[rank]
        holders = self.fleet._pools[MODEL].index._holders
        return sum(holders.get(each, 0) >> replica.row & 1 for each in hashes)

    @property
    def engine_id(self) -> str:
        return next(iter(self.fleet.replicas.values())).engine.replica_id


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with scheduling.service() as service, scheduling.client(service.port) as client:
        env = {
            **os.environ,
            "PENSTOCK_DATA_DIR": str(tmp_path),
            "PENSTOCK_SCHEDULER_PORT": str(service.port),
            "PENSTOCK_INTERNAL_TOKEN": scheduling.TOKEN,
            "PENSTOCK_ENGINE_KEY": "engine-key",
            "PENSTOCK_ENGINE": "sim",
            "PENSTOCK_MODEL": MODEL,
            "PENSTOCK_PROFILE": "dp2",
            "PENSTOCK_PREFIX": "exact",
            "PENSTOCK_SIM_SPEEDUP": "5",
        }
        agent = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "cli.main", "agent", cwd=CHECKOUT, env=env
        )
        try:
            yield Rig(service, client)
        finally:
            if agent.returncode is None:
                agent.send_signal(signal.SIGTERM)
            await asyncio.wait_for(agent.wait(), 60)


async def test_events_of_each_rank_are_known_as_its_own(rig: Rig) -> None:
    shown = await rig.ready()
    assert (len(shown.ranks), shown.capacity.dp_ranks) == (2, 2)
    await until(lambda: {each.status.prefix_kind for each in rig.fleet.replicas.values()} == {"tokens"})
    one = await rig.ask(shown.url, 0, "tenant-a")
    two = await rig.ask(shown.url, 1, "tenant-b")
    assert len(one) > 4
    assert not one & two
    await until(lambda: rig.holds(0, one) and rig.holds(1, two), what="the blocks of both ranks")


async def test_a_drained_engine_is_drained_on_all_ranks_and_resumes_on_all(rig: Rig) -> None:
    await rig.ready()
    done = await rig.client.command(ReplicaCommand("c1", rig.engine_id, "drain", 20.0))
    assert done.ok, done.message
    await until(lambda: rig.states() == [ReplicaState.DRAINING] * 2)
    done = await rig.client.command(ReplicaCommand("c2", rig.engine_id, "resume", 20.0))
    assert done.ok, done.message
    await rig.ready()
    refused = await rig.client.command(ReplicaCommand("c3", f"{rig.engine_id}/0", "drain", 20.0))
    assert not refused.ok
    assert f"known replicas: {rig.engine_id}" in refused.message


async def test_an_engine_that_dies_takes_all_its_ranks_with_it(rig: Rig) -> None:
    shown = await rig.ready()
    await until(lambda: rig.client.snapshot().replicas)
    placement = await rig.client.place(scheduling.request())
    assert placement.rank in (0, 1)
    os.kill(shown.pid, signal.SIGKILL)
    await until(lambda: ReplicaState.READY not in rig.states(), 30.0, "no rank serves")
    assert len(rig.fleet.replicas) == 2
    again = await rig.ready()
    assert again.boot_id != shown.boot_id
    assert {each.status.boot_id for each in rig.fleet.replicas.values()} == {again.boot_id}
