"""A stand-in for the driver's NVML library, compiled from tests/support/nvml/stub.c, and for the tools beside it."""

import subprocess
from pathlib import Path

SOURCE = Path(__file__).parent / "nvml" / "stub.c"
LIBRARY = "libnvidia-ml.so.1"


def build(directory: Path) -> Path:
    """Compile the library into `directory` and return its path; LD_LIBRARY_PATH finds it there."""
    library = directory / LIBRARY
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(SOURCE)], check=True)
    return library


def tool(directory: Path, name: str, printed: str, status: int = 0) -> None:
    """Make an executable `name` that prints a recorded output."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.out").write_text(printed)
    script = directory / name
    script.write_text(f'#!/bin/sh\ncat "$0.out"\nexit {status}\n')
    script.chmod(0o755)
