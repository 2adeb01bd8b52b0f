"""Checks the arguments of an engine with the parser of the engine's own environment."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from core.errors import EngineFailed, InvalidRequest, Unavailable
from workers import engine_install
from workers.catalog import CatalogModel, EngineProfile
from workers.engine_command import CHECKOUT, cpu_environment
from workers.replica_view import EngineRefused

CHECK_TIMEOUT_S = 300.0
"""Seconds that the check may take: the engine's modules are imported, which reads much from the disk the first time."""
MAX_CHECKS = 2
"""Checks of this process at once. Each imports the engine: a second or more of a core, and some hundred MiB."""
RETRY_S = 10.0
"""Seconds after which a refused check may be tried again."""
_running = asyncio.Semaphore(MAX_CHECKS)
_taken: set[tuple[Path, tuple[str, ...]]] = set()
"""What the parser took on this host: an engine that starts again does not wait for it."""
_SCRIPT = CHECKOUT / "workers" / "engine_args_check.py"
_PROGRAM = "vllm serve: "


async def check_arguments(model: CatalogModel, engine_env: Path) -> None:
    """Raise InvalidRequest with the parser's words when vLLM would refuse a profile's command line.

    Raises Unavailable when there is no engine environment, when its parser does not answer, or when MAX_CHECKS run.
    """
    python = engine_env / "bin" / "python"
    if engine_install.status(engine_env).state == "absent":
        raise Unavailable(
            f"there is no engine in {engine_env} whose parser could check the arguments; `penstock engine install` "
            "makes one, PENSTOCK_ENGINE_ENV names another, `unchecked` (--unchecked) adds the model without the check, "
            "which its first host then makes before it fetches weights",
            code="engine_absent",
        )
    if _running.locked():
        raise Unavailable(
            f"{MAX_CHECKS} checks of arguments run already; try again in {RETRY_S:.0f} s",
            code="engine_checks_busy",
            retry_after_s=RETRY_S,
        )
    async with _running:
        for profile in model.profiles.values():
            await _check(python, profile.command_line(model, 8000)[2:])


async def check_on_host(model: CatalogModel, profile: EngineProfile, engine_env: Path) -> None:
    """Check the arguments of one profile on the host that is to serve it, however many checks wait for their turn.

    Raises EngineRefused with the parser's words, EngineFailed when the parser does not answer.
    """
    python, words = engine_env / "bin" / "python", tuple(profile.command_line(model, 8000)[2:])
    if (python, words) in _taken:
        return
    try:
        async with _running:
            await _check(python, words)
    except InvalidRequest as error:
        raise EngineRefused(error.message) from None
    except (Unavailable, OSError) as error:
        raise EngineFailed(f"the arguments could not be checked: {error}") from None
    _taken.add((python, words))


async def _check(python: Path, words: Sequence[str]) -> None:
    """Run the parser on the words after `vllm serve`; raises as check_arguments does."""
    process = await asyncio.create_subprocess_exec(
        str(python),
        str(_SCRIPT),
        *words,
        env=cpu_environment({"PATH": "/usr/bin:/bin", "VLLM_LOGGING_LEVEL": "ERROR"}),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            _, said = await process.communicate()
    except TimeoutError:
        raise Unavailable(
            f"the engine's parser did not answer within {CHECK_TIMEOUT_S:.0f} s; try again"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise _refusal(process.returncode, said.decode("utf-8", "replace"))


def _refusal(status: int, said: str) -> InvalidRequest | Unavailable:
    """What the parser said in its last line; a failure of another kind is not about the arguments."""
    last = (
        (said.strip().splitlines() or ["it said nothing"])[-1].removeprefix(_PROGRAM).removeprefix("error: ")
    )
    if status == 2:
        return InvalidRequest(f"vLLM refuses the arguments: {last[:500]}", param="args")
    return Unavailable(f"the engine's parser failed: {last[:500]}", code="engine_failed")
