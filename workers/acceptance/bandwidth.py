"""Measures memory bandwidth, copies over PCIe and launches, with the engine's PyTorch (device_probe.py)."""

from pathlib import Path

import msgspec

from workers.acceptance import device_probe
from workers.acceptance.commands import run_tool
from workers.acceptance.readings import BandwidthReading

TIMEOUT_S = 180.0


async def measure_devices(
    engine_env: Path, *, kind: str = "cuda", copy_bytes: int = device_probe.COPY_BYTES
) -> tuple[BandwidthReading, ...]:
    """Every GPU's figures; none where the engine is not installed or its PyTorch cannot use the GPUs."""
    python = engine_env / "bin" / "python"
    ran = await run_tool((str(python), "-B", device_probe.__file__, kind, str(copy_bytes)), TIMEOUT_S)
    if ran is None or ran.status != 0:
        return ()
    try:
        return msgspec.json.decode(ran.output.strip().splitlines()[-1], type=tuple[BandwidthReading, ...])
    except (IndexError, msgspec.MsgspecError):
        return ()
