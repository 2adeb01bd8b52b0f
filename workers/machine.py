"""Facts about this machine: its GPUs, its address, and whether the model hub is reachable."""

import asyncio
import os
import re
import shutil
import socket
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from ipaddress import IPv6Address, ip_address
from pathlib import Path

import msgspec

from core.addresses import Address
from core.errors import InvalidRequest
from core.settings import without_credentials

_HUB_PROBE = "import sys; from huggingface_hub import hf_hub_download as get; get(sys.argv[1], 'config.json')"
HUB_TIMEOUT_S = 6.0
"""Seconds that the probe of the model hub may take."""
_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
"""A host name; an IPv4 address looks like one."""


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
        env={
            **without_credentials(os.environ, "PENSTOCK_"),
            "HF_HUB_ETAG_TIMEOUT": "3",
            "HF_HUB_DOWNLOAD_TIMEOUT": "3",
        },
    )
    try:
        async with asyncio.timeout(timeout_s):
            return await process.wait() == 0
    except TimeoutError:
        process.kill()
        await process.wait()
        return False


class EngineAddress(msgspec.Struct, frozen=True):
    """Where the engines of a host are."""

    bind: str
    """Address that they bind."""
    reach: str
    """Address or name at which other hosts reach them."""
    tls: bool = False

    def url(self, port: int) -> str:
        """The base URL of the engine on `port`."""
        return f"{'https' if self.tls else 'http'}://{Address(self.reach, port)}"


def engine_address(host: str, advertised: str) -> EngineAddress:
    """Where engines are, by the settings `host` and `advertise_host`. Raises InvalidRequest for no address or name."""
    if not advertised:
        address = reachable_address(host)
        return EngineAddress(address, address)
    if not (_NAME.fullmatch(advertised) or _is_ipv6(advertised)):
        raise InvalidRequest(
            f"PENSTOCK_ADVERTISE_HOST is {advertised!r}; it must be an address or a name without a port, like 10.0.0.5"
        )
    return EngineAddress(advertised if _is_of_this_machine(advertised) else host, advertised)


@cache
def release() -> str:
    """The version of Penstock that runs here; empty where it is not installed as a package."""
    with suppress(PackageNotFoundError):
        return version("penstock")
    return ""


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True


def _is_of_this_machine(address: str) -> bool:
    """Whether `address` can be bound; a name is not resolved."""
    try:
        ip_address(address)
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
    except (OSError, ValueError):
        return False
    return True


def reachable_address(bind: str) -> str:
    """The address at which other hosts reach a server bound to `bind`."""
    if bind not in ("0.0.0.0", "::", ""):  # noqa: S104 - compared, not bound
        return bind
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"
