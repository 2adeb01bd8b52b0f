"""`make cancels`: clients leave at random instants; afterwards every answer, row and token is compared.

A platform with two API processes and two simulated engines runs on this machine. Clients of three organisations send
requests of four APIs, streamed and whole, one after another and several at once on a connection. They leave before the
head, before the first token, in the middle, at the last byte, or with half a request sent, by an orderly end or a
reset. Each answer is recognisably its own: a part of another one is found at once.

The same --seed gives the same connections; the instants are those of the machine.

Examples:
  make cancels
  make cancels ARGS="--cancels 1000 --seed 4711"
  make cancels ARGS="--publish"
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from bench.cancels import report
from bench.cancels.run import Outcome, Platform, Run
from bench.chaos.traffic import Customer
from bench.performance import unpublishable
from bench.provenance import commit_of, provenance
from bench.stack import ROOT, Stack
from sim.engine.request_log import VARIABLE

OUT = ROOT / "bench" / "out"
CANCELS = 10_000
"""Clients that leave in a run that may be published."""
CUSTOMERS = ("Alder", "Birch", "Cedar")
FLAGS = ("--engine", "sim", "--replicas", "2", "--api-workers", "2", "--no-demo")
SPEEDUP = "1.0"
"""Speed of the simulated engines: that of the tiny model on two cores, some milliseconds a token."""
console = Console(stderr=True, highlight=False)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="make cancels", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cancels", type=int, default=CANCELS, help="clients that leave; default 10,000")
    parser.add_argument("--connections", type=int, default=96, help="at the same time; default 96")
    parser.add_argument("--seed", type=int, help="of requests and clients; default: drawn, and printed")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on standard output")
    parser.add_argument("--publish", action="store_true", help="write docs/results/cancels.md with its data")
    return parser.parse_args()


def main() -> int:
    """Play, print, write; return 0 when nothing is wrong, else 1."""
    given = arguments()
    commit = commit_of(ROOT)
    if given.publish and (reason := unpublishable(commit, quick=given.cancels < CANCELS)):
        raise SystemExit(f"--publish: {reason}")
    seed = random.SystemRandom().randrange(1_000_000) if given.seed is None else given.seed
    console.print(f"seed {seed}, {given.cancels:,} cancels")
    folder = Path(tempfile.mkdtemp(prefix="penstock-cancels-"))
    folder.chmod(0o755)
    log = folder / "engines.jsonl"
    os.environ |= {VARIABLE: str(log), "PENSTOCK_SIM_SPEEDUP": SPEEDUP}
    stack = Stack(ROOT, folder / "data", *FLAGS)
    try:
        stack.start()
        customers = [Customer(name, *stack.make_customer(name)) for name in CUSTOMERS]
        url = f"http://127.0.0.1:{stack.port}"
        ready = stack.ready
        platform = Platform(url, ready["model"], customers, ready["database_url"], log, stack.reconcile)
        outcome = asyncio.run(Run(platform, seed, given.cancels, given.connections, _say()).play())
    finally:
        stack.stop()
        shutil.rmtree(folder, ignore_errors=True)
    outcome.machine = {**provenance(), "commit": commit, "connections": given.connections}
    return _tell(given, outcome)


def _say() -> Callable[[int], None]:
    told = {"at": time.monotonic()}

    def say(cancels: int) -> None:
        if time.monotonic() - told["at"] >= 10:
            told["at"] = time.monotonic()
            console.print(f"{cancels:,} clients have left")

    return say


def _tell(given: argparse.Namespace, outcome: Outcome) -> int:
    """Write the result and say what it is."""
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / f"cancels-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"
    found = outcome.as_dict()
    path.write_text(json.dumps(found) + "\n")
    written = [path, *(report.publish(found) if given.publish else [])]
    print(json.dumps(found) if given.json else report.text(found))
    for each in written:
        console.print(f"written: {each}")
    if not outcome.sound:
        again = f'make cancels ARGS="--seed {outcome.seed} --cancels {given.cancels}"'
        console.print(f"the same connections again: {again}", style="red")
    return 0 if outcome.sound else 1


if __name__ == "__main__":
    sys.exit(main())
