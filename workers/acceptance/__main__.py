"""Checks this host and prints the result as JSON: `python -m workers.acceptance --host-kind K --engine-env E`.

The agent runs it as a process of its own, because a driver that hangs blocks whoever calls it.
"""

import argparse
import asyncio
import sys
from pathlib import Path

import msgspec

from core.clock import SystemClock
from core.errors import Conflict
from core.process_identity import boot_id
from workers.acceptance.check import Acceptance, check_host, expected_of
from workers.catalog import load_catalog


async def check(kind: str, engine_env: Path, only: list[int], *, count: int | None, busy: bool) -> Acceptance:
    """Check the GPUs `only`; where something uses them, their state alone."""
    expected = expected_of(load_catalog(), kind, gpus=count)
    for load in (not busy, False):
        try:
            return await check_host(
                expected,
                engine_env=engine_env,
                machine_boot=boot_id(),
                clock=SystemClock(),
                load=load,
                only=only,
            )
        except Conflict:
            continue
    raise AssertionError("a check without a load has no conflict")


def main(argv: list[str] | None = None) -> int:
    """Print the result; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m workers.acceptance", description="Check this GPU host.")
    parser.add_argument("--host-kind", required=True, help="a kind of host of the catalog")
    parser.add_argument("--engine-env", type=Path, required=True, help="the engine's environment")
    parser.add_argument("--only", required=True, help="indices of the GPUs, with commas")
    parser.add_argument("--count", type=int, help="GPUs that there should be; default: as the kind has")
    parser.add_argument("--busy", action="store_true", help="read only")
    chosen = parser.parse_args(argv)
    only = [int(index) for index in chosen.only.split(",")]
    found = asyncio.run(
        check(chosen.host_kind, chosen.engine_env, only, count=chosen.count, busy=chosen.busy)
    )
    print(msgspec.json.encode(found).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
