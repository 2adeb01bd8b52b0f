"""What an engine needs from the model hub, and the process that the agent starts to fetch it before the engine."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path

import msgspec

from core.errors import EngineFailed
from core.settings import without_credentials
from workers.engine_command import CHECKOUT
from workers.plan import ReplicaPlan
from workers.replica_view import EngineRefused
from workers.weights_manifest import PrefetchLine

Fetch = Callable[[Callable[[PrefetchLine], None]], Coroutine[None, None, None] | None]
"""Has the weights on this host, and tells how far it is; None = there are none to fetch. Raises as `fetch_weights`."""

_END_S = 5.0
"""Seconds that the process gets after SIGTERM."""


def hub_models(plan: ReplicaPlan) -> tuple[str, ...]:
    """The models, as NAME@REVISION, that a replica's engine reads from the hub: its own, its draft, its tokenizer.

    Empty for simulated engines, for the toy model, and for a directory.
    """
    if plan.engine != "vllm" or plan.model.toy:
        return ()
    args = plan.profile.args
    stated = [(plan.profile.hub_id or plan.model.hub_id, args.get("revision"))]
    speculation = args.get("speculative-config")
    if isinstance(speculation, dict):
        stated.append((str(speculation.get("model") or ""), speculation.get("revision")))
    stated.append((str(args.get("tokenizer") or ""), args.get("tokenizer-revision")))
    names = [
        f"{name}@{revision or 'main'}" for name, revision in stated if name and not Path(name).is_absolute()
    ]
    return tuple(dict.fromkeys(names))


def fetch_of(plan: Callable[[], ReplicaPlan], bound_gb: float, log_file: Path) -> Fetch:
    """The fetch of a replica, whose plan changes with the version that is deployed."""

    def fetch(tell: Callable[[PrefetchLine], None]) -> Coroutine[None, None, None] | None:
        models = hub_models(plan())
        return fetch_weights(models, bound_gb, log_file, tell) if models else None

    return fetch


async def fetch_weights(
    models: tuple[str, ...], bound_gb: float, log_file: Path, tell: Callable[[PrefetchLine], None]
) -> None:
    """Have the weights of `models` in the hub's cache of this host; `tell` gets how far it is.

    Raises EngineRefused when another try cannot succeed, EngineFailed for other failures, and OSError.
    """
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with log_file.open("ab") as sink:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "workers.prefetch", "--bound-gb", str(bound_gb), *models,
            cwd=CHECKOUT,
            env=without_credentials(os.environ, "PENSTOCK_"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=sink,
            start_new_session=True,
        )  # fmt: skip
    last = PrefetchLine()
    try:
        if process.stdout is not None:
            async for text in process.stdout:
                last = msgspec.json.decode(text, type=PrefetchLine)
                if last.total_bytes:
                    tell(last)
        await process.wait()
    finally:
        await _end(process)
    if last.permanent:
        raise EngineRefused(last.error)
    if last.stage != "done":
        raise EngineFailed(
            last.error or f"the prefetch ended with status {process.returncode}: see {log_file}"
        )


async def _end(process: asyncio.subprocess.Process) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _END_S)
