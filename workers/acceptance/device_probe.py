"""Measures each GPU's memory and its way to host memory; prints one JSON list.

Runs as a script inside the engine's environment, whose PyTorch it uses; the platform never imports that. The device is
`cuda`, or `cpu` to try the script where there is no GPU.
"""

import json
import sys
import time
from importlib import import_module
from typing import Any

COPY_BYTES = 1 << 30
"""Bytes of one copy: far more than a cache holds."""
REPEATS, LAUNCHES = 10, 1000
NO_TORCH = 77
"""Exit status where there is no PyTorch."""


def measure(torch: Any, device: str, copy_bytes: int) -> dict[str, float]:
    """The figures of one device, in GB/s and microseconds."""
    on_device = torch.empty(copy_bytes, dtype=torch.uint8, device=device)
    other = torch.empty_like(on_device)
    on_host = torch.empty(copy_bytes, dtype=torch.uint8, pin_memory=device != "cpu")
    small = torch.zeros(1, device=device)

    def seconds(work: Any, repeats: int) -> float:
        """Seconds of one `work`, as a queue of them shows it."""
        for _ in range(3):
            work()
        _wait(torch, device)
        began = time.perf_counter()
        for _ in range(repeats):
            work()
        _wait(torch, device)
        return (time.perf_counter() - began) / repeats

    return {
        "memory_gb_per_s": 2 * copy_bytes / seconds(lambda: other.copy_(on_device), REPEATS) / 1e9,
        "to_device_gb_per_s": copy_bytes
        / seconds(lambda: on_device.copy_(on_host, non_blocking=True), REPEATS)
        / 1e9,
        "from_device_gb_per_s": copy_bytes
        / seconds(lambda: on_host.copy_(on_device, non_blocking=True), REPEATS)
        / 1e9,
        "launch_us": seconds(lambda: small.add_(1), LAUNCHES) * 1e6,
    }


def _wait(torch: Any, device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)


def main(kind: str, copy_bytes: int = COPY_BYTES) -> int:
    """Measure every device of `kind`; return the exit status."""
    try:
        torch = import_module("torch")
    except ModuleNotFoundError:
        return NO_TORCH
    devices = ["cpu"] if kind == "cpu" else [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    print(
        json.dumps(
            [{"index": index, **measure(torch, name, copy_bytes)} for index, name in enumerate(devices)]
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *(int(each) for each in sys.argv[2:3])))
