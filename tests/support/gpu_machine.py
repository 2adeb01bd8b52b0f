"""What a machine with NVIDIA GPUs shows an agent: the driver's library, nvidia-smi, and an engine's Python."""

import json
from pathlib import Path

from tests.support.nvml_stub import build, tool

ENGINE = """#!/bin/sh
# The engine's Python: the probe of devices prints what sound GPUs reach, vLLM is the command of the test.
case "$2" in
*device_probe.py) echo '%(devices)s'; exit 0 ;;
esac
while [ "$#" -gt 1 ]; do
  case "$1" in --port) port="$2" ;; esac
  shift
done
%(serve)s
"""
DEVICE = {
    "memory_gb_per_s": 2700.0,
    "to_device_gb_per_s": 52.0,
    "from_device_gb_per_s": 51.0,
    "launch_us": 2.1,
}


def gpu_machine(directory: Path, gpus: int, serve: str = "exit 1") -> dict[str, str]:
    """Make a machine with H100s below `directory`; returns its variables, besides NVML_STUB with what is wrong.

    `serve`: shell commands that serve as the engine on port $port.
    """
    engine = directory / "engine"
    (engine / "bin").mkdir(parents=True)
    python = engine / "bin" / "python"
    devices = json.dumps([{"index": index, **DEVICE} for index in range(gpus)])
    python.write_text(ENGINE % {"devices": devices, "serve": serve})
    python.chmod(0o755)
    (engine / "penstock-steps.json").write_text('{"kind": "gpu", "done": {"provided": ""}}')
    listing = "".join(f"{index}, NVIDIA H100 80GB HBM3\n" for index in range(gpus))
    tool(directory / "tools", "nvidia-smi", listing)
    return {
        "PATH": f"{directory / 'tools'}:/usr/bin:/bin",
        "LD_LIBRARY_PATH": str(build(directory).parent),
        "PENSTOCK_ENGINE": "vllm",
        "PENSTOCK_ENGINE_ENV": str(engine),
    }
