"""Facts about this machine: its GPUs, its address, and whether the model hub is reachable."""

import asyncio
import os
import re
import shutil
import socket
from pathlib import Path

import msgspec

_HUB_PROBE = "import sys; from huggingface_hub import hf_hub_download as get; get(sys.argv[1], 'config.json')"
HUB_TIMEOUT_S = 6.0
"""Seconds that the probe of the model hub may take."""


class Gpus(msgspec.Struct, frozen=True):
    """The usable GPUs of a host."""

    ids: tuple[str, ...] = ()
    """Values for CUDA_VISIBLE_DEVICES."""
    kind: str = ""
    """Model of the first GPU from the driver's name, such as `H200`."""


async def find_gpus() -> Gpus:
    """The GPUs that the driver lists and CUDA_VISIBLE_DEVICES allows; none without a driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return Gpus()
    process = await asyncio.create_subprocess_exec(
        tool,
        "--query-gpu=index,name",
        "--format=csv,noheader",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(15.0):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return Gpus()
    return parse_gpus(output.decode(), os.environ.get("CUDA_VISIBLE_DEVICES"))


def parse_gpus(listing: str, visible: str | None) -> Gpus:
    """The GPUs of `index, name` lines that `visible` (CUDA_VISIBLE_DEVICES) allows; None allows all."""
    found: dict[str, str] = {}
    for line in listing.splitlines():
        number, separator, name = line.partition(",")
        if separator and number.strip().isdigit():
            found[number.strip()] = name.strip()
    allowed = [item.strip() for item in visible.split(",")] if visible is not None else list(found)
    ids = tuple(item for item in allowed if item in found)
    if not ids:
        return Gpus()
    names = re.findall(r"\b(GB\d{3}|[A-Z]{1,2}\d{2,4}X?)", found[ids[0]])
    return Gpus(ids, names[0] if names else found[ids[0]])


async def hub_has(python: Path, hub_id: str, timeout_s: float = HUB_TIMEOUT_S) -> bool:
    """Whether the engine's hub client gets a model's config, from cache or network, within `timeout_s` seconds."""
    process = await asyncio.create_subprocess_exec(
        str(python),
        "-c",
        _HUB_PROBE,
        hub_id,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "HF_HUB_ETAG_TIMEOUT": "3", "HF_HUB_DOWNLOAD_TIMEOUT": "3"},
    )
    try:
        async with asyncio.timeout(timeout_s):
            return await process.wait() == 0
    except TimeoutError:
        process.kill()
        await process.wait()
        return False


def reachable_address(bind: str) -> str:
    """The address at which other hosts reach a server bound to `bind`."""
    if bind not in ("0.0.0.0", "::", ""):  # noqa: S104 - compared, not bound
        return bind
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"
