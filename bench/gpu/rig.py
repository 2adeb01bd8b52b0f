"""One engine under the agent's own code, without a scheduler."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from pydantic import SecretStr

from core.child import free_port
from core.clock import SystemClock
from core.settings import Settings
from workers.agent import Agent
from workers.catalog import Catalog
from workers.engine_api import EngineApi
from workers.plan import TINY
from workers.wire import ReplicaCommand, ReplicaState, ReplicaStatus

KEY = "gpu"
"""The engine's API key: it listens on loopback."""
_POLL_S = 0.05


@dataclass(frozen=True)
class Rig:
    """A replica that is ready."""

    agent: Agent
    api: EngineApi
    session: aiohttp.ClientSession
    data_dir: Path
    loaded_s: float
    """Seconds from the agent's start until the engine answered: its processes, weights, kernels and graphs, and at the
    first time the making of the model."""
    warmed_s: float
    """Seconds from then until the replica was ready: the warm-up requests."""

    @property
    def replica(self) -> ReplicaStatus:
        """The replica as the agent reports it now."""
        return self.agent.heartbeat().replicas[0]

    async def command(self, action: str, level: int = 1) -> float:
        """Have the agent execute a command on the replica; returns the seconds. Raises RuntimeError when it fails."""
        began = time.perf_counter()
        result = await self.agent.execute(ReplicaCommand("gpu", self.replica.replica_id, action, level=level))
        if not result.ok:
            raise RuntimeError(f"{action}: {result.message}")
        return time.perf_counter() - began


@asynccontextmanager
async def serving(
    catalog: Catalog, data_dir: Path, *, engine: str, engine_env: Path, profile: str = ""
) -> AsyncIterator[Rig]:
    """An agent with one engine of penstock/tiny. Raises RuntimeError when the engine fails, or PenstockError when the
    host cannot run it."""
    settings = Settings(
        engine=engine,
        model=TINY,
        profile=profile,
        data_dir=data_dir,
        engine_env=engine_env,
        prefix="exact",
        acceptance="off",
        scheduler_port=free_port(),  # where nothing listens
        engine_key=SecretStr(KEY),
        internal_token=SecretStr(KEY),
    )
    stop = asyncio.Event()
    agent = Agent(settings, catalog, SystemClock())
    began = time.perf_counter()
    running = asyncio.create_task(agent.run(stop))
    try:
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session:
            loaded = await _answers(agent, running, session)
            status = await _ready(agent, running, data_dir)
            now = time.perf_counter()
            api = EngineApi(session, status.url, KEY)
            yield Rig(agent, api, session, data_dir, round(loaded - began, 2), round(now - loaded, 2))
    finally:
        stop.set()
        await asyncio.gather(running, return_exceptions=True)
        await agent.close(asyncio.Event())


async def _answers(agent: Agent, running: "asyncio.Task[None]", session: aiohttp.ClientSession) -> float:
    """The instant at which the engine first answers, or has failed."""
    while not running.done():
        for report in agent.heartbeat().replicas[:1]:
            if report.state is not ReplicaState.LOADING:
                return time.perf_counter()
            with suppress(aiohttp.ClientError):
                async with session.get(f"{report.url}/health") as answer:
                    if answer.status == 200:
                        return time.perf_counter()
        await asyncio.sleep(_POLL_S)
    return time.perf_counter()


async def _ready(agent: Agent, running: "asyncio.Task[None]", data_dir: Path) -> ReplicaStatus:
    """The replica once it is ready. Raises RuntimeError with the end of the engine's log when it fails."""
    while True:
        if running.done():
            running.result()
            raise RuntimeError("the agent ended")
        for report in agent.heartbeat().replicas[:1]:
            if report.state is ReplicaState.READY:
                return report
            if report.state is ReplicaState.FAILED:
                logs = "".join(path.read_text()[-3000:] for path in (data_dir / "logs").glob("engine-*.log"))
                raise RuntimeError(f"the engine failed: {report.detail}\n{logs}")
        await asyncio.sleep(_POLL_S)
