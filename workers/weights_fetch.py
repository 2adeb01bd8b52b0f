"""What an engine needs from the model hub, and the process that the agent starts to fetch it before the engine."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable
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

STALLED_S = 1800.0
"""Seconds without any progress after which a prefetch is ended: the largest files take minutes to compare."""
_METHODS = ("ngram", "suffix")
"""What vLLM takes in place of a draft model."""
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
    names = [f"{name}@{revision or 'main'}" for name, revision in stated if _is_on_hub(name)]
    return tuple(dict.fromkeys(names))


def _is_on_hub(name: str) -> bool:
    """Whether a name of a model is one of the hub: no directory, no URL, and no word for drafts without a model.

    Engines find relative directories from the checkout, in which they are started.
    """
    if not name or name.startswith((".", "/", "~")) or "://" in name or name in _METHODS:
        return False
    return not (CHECKOUT / name).is_dir()


def fetch_of(
    plan: Callable[[], ReplicaPlan],
    bound_gb: float,
    log_file: Path,
    beside: Callable[[], Iterable[ReplicaPlan]] = tuple,
    check: Callable[[ReplicaPlan], Awaitable[None]] | None = None,
) -> Fetch:
    """The fetch of a replica, whose plan changes with the version that is deployed.

    `beside` returns the plans of all replicas of the host, whose weights stay in the cache. `check` raises for a plan
    that its engine would refuse, before anything is fetched.
    """

    async def checked(
        wanted: ReplicaPlan, models: tuple[str, ...], tell: Callable[[PrefetchLine], None]
    ) -> None:
        if check is not None:
            await check(wanted)
        kept = tuple(dict.fromkeys(name for each in beside() for name in hub_models(each)))
        load_format = str(wanted.profile.args.get("load-format") or "auto")
        await fetch_weights(models, bound_gb, log_file, tell, kept, load_format)

    def fetch(tell: Callable[[PrefetchLine], None]) -> Coroutine[None, None, None] | None:
        wanted = plan()
        models = hub_models(wanted)
        return checked(wanted, models, tell) if models else None

    return fetch


async def fetch_weights(
    models: tuple[str, ...],
    bound_gb: float,
    log_file: Path,
    tell: Callable[[PrefetchLine], None],
    kept: tuple[str, ...] = (),
    load_format: str = "auto",
) -> None:
    """Have the weights of `models` in the hub's cache of this host; `tell` gets how far it is. Those of `kept` stay.

    `load_format`: the engine's, which says which of a model's files it reads.

    Raises EngineRefused when another try cannot succeed, EngineFailed for other failures, and OSError.
    """
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with log_file.open("ab") as sink:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "workers.prefetch", "--bound-gb", str(bound_gb),
            "--load-format", load_format,
            *(word for name in kept for word in ("--keep", name)), *models,
            cwd=CHECKOUT,
            env=without_credentials(os.environ, "PENSTOCK_"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=sink,
            start_new_session=True,
        )  # fmt: skip
    last = PrefetchLine()
    try:
        async with asyncio.timeout(STALLED_S) as patience:
            while process.stdout is not None and (text := await process.stdout.readline()):
                line = msgspec.json.decode(text, type=PrefetchLine)
                if line != last:
                    patience.reschedule(asyncio.get_running_loop().time() + STALLED_S)
                last = line
                if last.total_bytes:
                    tell(last)
            await process.wait()
    except TimeoutError:
        last = PrefetchLine("failed", error=f"the prefetch made no progress for {STALLED_S / 60:.0f} minutes")
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
