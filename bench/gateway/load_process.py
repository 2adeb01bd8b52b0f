"""The load generator as a child process."""

import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from bench.gateway.load import Target
from bench.stack import ROOT


def end_process(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class LoadProcess:
    """The load generator and its jobs."""

    def __init__(self, cores: Sequence[int]) -> None:
        argv = [sys.executable, "-m", "bench.gateway.load"]
        if cores:
            argv = ["taskset", "-c", ",".join(map(str, cores)), *argv]
        self._process = subprocess.Popen(
            argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )

    def run(self, job: str, target: Target, **options: object) -> dict[str, Any]:
        """Run one job and return its result, with `error` when the job failed or the process has died."""
        line = msgspec.json.encode({"job": job, "target": target, "options": options})
        try:
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except OSError:
            answer = b""
        return msgspec.json.decode(answer) if answer else {"error": "the load generator has died"}

    def close(self) -> None:
        """End the process."""
        with suppress(OSError):  # what a dead process has not read cannot be flushed
            self._process.stdin.close()
        end_process(self._process)
        self._process.stdout.close()
