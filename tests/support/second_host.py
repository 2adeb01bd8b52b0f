"""Another host of a running platform: an agent of its own, whose engine serves another model."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.live_pool import watching
from tests.support.stack import ROOT, Stack
from tests.support.waiting import until
from workers.wire import ReplicaState

START_S = 480.0
STOP_S = 120.0


@contextmanager
def second_host(stack: Stack, data_dir: Path, model: str, engine: str = "vllm") -> Iterator[None]:
    """Serve `model` by a real vLLM, or by the simulated engine (`sim`), beside what `stack` serves.

    The state of the host is in `data_dir`. Begins when the scheduler places requests there, and ends when the engine
    has ended.
    """
    facts = stack.internals()
    settings = {
        "PENSTOCK_DATA_DIR": str(data_dir),
        "PENSTOCK_SCHEDULERS": facts["schedulers"],
        "PENSTOCK_INTERNAL_TOKEN": facts["internal_token"],
        "PENSTOCK_ENGINE_KEY": facts["engine_key"],
        "PENSTOCK_ENGINE_ENV": os.environ.get("PENSTOCK_ENGINE_ENV") or str(ROOT / ".engine"),
    }
    command = [sys.executable, "-m", "cli.main", "agent", "--engine", engine, "--model", model]
    log = data_dir.parent / f"{data_dir.name}-agent.log"
    with log.open("ab") as output:
        agent = subprocess.Popen(
            command, stdout=output, stderr=output, cwd=ROOT, env={**os.environ, **settings}, start_new_session=True
        )  # fmt: skip
    try:
        asyncio.run(_serving(stack, model, agent, log))
        yield
    finally:
        agent.terminate()
        agent.wait(STOP_S)


async def _serving(stack: Stack, model: str, agent: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a replica of `model` is ready; the log's tail is in the error when the agent ends before."""
    async with watching(stack) as pool:

        def ready() -> bool:
            assert agent.poll() is None, f"the agent has ended:\n{log.read_text(errors='replace')[-3000:]}"
            return any(replica.model == model for replica in pool.in_state(ReplicaState.READY))

        await until(ready, START_S, f"a replica of {model} is ready")
