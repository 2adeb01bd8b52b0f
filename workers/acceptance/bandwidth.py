"""Measures memory bandwidth, copies over PCIe and launches, with the engine's PyTorch (device_probe.py)."""

from pathlib import Path

import msgspec

from workers.acceptance import device_probe
from workers.acceptance.commands import run_tool
from workers.acceptance.readings import BandwidthReading, DevicesReading

TIMEOUT_S = 180.0


async def measure_devices(
    engine_env: Path, *, kind: str = "cuda", copy_bytes: int = device_probe.COPY_BYTES
) -> DevicesReading | None:
    """Every GPU's figures; None where the engine with its PyTorch is not installed."""
    python = engine_env / "bin" / "python"
    ran = await run_tool((str(python), "-B", device_probe.__file__, kind, str(copy_bytes)), TIMEOUT_S)
    if ran is None or ran.status == device_probe.NO_TORCH:
        return None
    try:
        devices = msgspec.json.decode(ran.printed, type=tuple[BandwidthReading, ...])
    except msgspec.MsgspecError:
        return DevicesReading(error=ran.last_line)
    return DevicesReading(devices)
