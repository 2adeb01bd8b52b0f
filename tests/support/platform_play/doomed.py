"""An API process that is going to be killed: it writes what it is told to its spool and waits.

    python -m tests.support.platform_play.doomed SPOOL_DIR NAME     (a JSON line of frames on stdin)

Its database is nowhere, so nothing of it is settled before its death.
"""

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from billing.metering.meter import Meter
from billing.metering.records import Checkpoint, OpenRecord, UsageRecord

SPOOL_BYTES = 1 << 20
Frame = OpenRecord | Checkpoint | UsageRecord
_ROOT = Path(__file__).parents[3]


async def _live(spool_dir: Path, name: str) -> None:
    meter = Meter("postgresql://nobody@127.0.0.1:1/none", spool_dir, name, spool_bytes=SPOOL_BYTES)
    await meter.start()
    for frame in msgspec.json.decode(sys.stdin.buffer.readline(), type=list[Frame]):
        if isinstance(frame, OpenRecord):
            meter.open(frame)
        elif isinstance(frame, Checkpoint):
            meter.checkpoint(frame)
        else:
            meter.settle(frame)
    print("ready", flush=True)
    await asyncio.Event().wait()


def live_and_die(spool_dir: Path, name: str, frames: Sequence[Frame]) -> None:
    """A process of that name writes `frames` and is killed; its spool stays."""
    spool_dir.mkdir(parents=True, exist_ok=True)
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.platform_play.doomed", str(spool_dir), name],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(list(frames)) + b"\n")
        process.stdin.flush()
        try:
            assert process.stdout.readline() == b"ready\n"
        finally:
            process.kill()
    assert list(spool_dir.glob(f"{name}*.spool")), "the dead process left no spool"


if __name__ == "__main__":
    asyncio.run(_live(Path(sys.argv[1]), sys.argv[2]))
