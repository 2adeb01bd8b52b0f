"""`make chaos`: random faults on a whole platform under load; afterwards its books are checked.

PostgreSQL, Redis, `penstock up` with two API processes and two simulated engines run on this machine. Clients of four
organisations stream, ask for whole answers, use tools, read slowly and leave, and keep a journal of all that they
receive, while processes are killed, stopped and frozen, clocks are stepped, Redis is emptied, the spool's disk is full,
its tail torn, the network slow or cut, and the whole machine restarted. Then the journal is compared with the books.

The same --seed gives the same faults in the same order; with fewer --faults it gives the first ones of them.

Examples:
  make chaos
  make chaos ARGS="--faults 1000 --publish"
  make chaos ARGS="--seed 4711 --faults 35 --keep /tmp/chaos"
"""

import argparse
import asyncio
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.chaos import report
from bench.chaos.disk import own_mounts
from bench.chaos.run import Outcome, Run
from bench.performance import unpublishable
from bench.provenance import commit_of, provenance
from bench.stack import ROOT

OUT = ROOT / "bench" / "out"
PUBLISHED_FAULTS = 1000
"""Fewest faults of a run that may be published."""
console = Console(stderr=True, highlight=False)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="make chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=60, help="how many; default 60, some five minutes")
    parser.add_argument("--seed", type=int, help="of faults and load; default: drawn, and printed")
    parser.add_argument("--clients", type=int, default=24, help="requests at the same time; default 24")
    parser.add_argument("--audit-every", type=int, default=50, help="faults between two audits; default 50")
    parser.add_argument("--keep", type=Path, help="an empty folder for data and logs, kept afterwards")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on standard output")
    parser.add_argument("--out", type=Path, help="where the result goes; default: bench/out")
    parser.add_argument(
        "--publish", action="store_true", help="write docs/results/chaos.md with data and plot"
    )
    return parser.parse_args()


def main() -> int:
    """Play, print, write; return 0 when the books agree with the journal, 1 when they do not."""
    given = arguments()
    commit = commit_of(ROOT)
    if given.publish and (reason := unpublishable(commit, quick=given.faults < PUBLISHED_FAULTS)):
        raise SystemExit(f"--publish: {reason}")
    seed = random.SystemRandom().randrange(1_000_000) if given.seed is None else given.seed
    mounts = own_mounts()  # before there are threads
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that all that was started ends
    folder = given.keep or Path(tempfile.mkdtemp(prefix="penstock-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    console.print(f"seed {seed}, {given.faults} faults" + ("" if mounts else "; no disk can be mounted here"))
    try:
        outcome = asyncio.run(_play(given, seed, folder, mounts=mounts))
    finally:
        if not given.keep:
            shutil.rmtree(folder, ignore_errors=True)
    outcome.machine = {**provenance(), "commit": commit, "clients": given.clients, "disk": mounts}
    return _tell(given, outcome)


async def _play(given: argparse.Namespace, seed: int, folder: Path, *, mounts: bool) -> Outcome:
    columns = (TextColumn("{task.description:60}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, refresh_per_second=2, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("", total=given.faults)

        def say(line: str) -> None:
            style = "red" if "VIOLATION" in line or "FAILED" in line else ""
            progress.console.print(line, style=style, markup=False)
            progress.update(task, completed=len(run.outcome.faults))

        def step(name: str) -> None:
            progress.update(task, description=name[:60])

        run = Run(
            seed,
            given.faults,
            folder,
            mounts,
            clients=given.clients,
            audit_every=given.audit_every,
            say=say,
            step=step,
        )
        return await run.play()


def _tell(given: argparse.Namespace, outcome: Outcome) -> int:
    """Write the result and say what it is."""
    OUT.mkdir(parents=True, exist_ok=True)
    path = given.out or OUT / f"chaos-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"
    found = outcome.as_dict()
    path.write_text(json.dumps(found) + "\n")
    written = [path, report.plot(found, path.with_suffix(".png"))]
    if given.publish:
        written += report.publish(found)
    if given.json:
        print(json.dumps({name: value for name, value in found.items() if name != "timeline"}))
    else:
        print(report.text(found))
    for each in written:
        console.print(f"written: {each}")
    if not outcome.sound:
        again = f'make chaos ARGS="--seed {outcome.seed} --faults {given.faults} --audit-every {given.audit_every}"'
        console.print(f"the same faults again: {again}", style="red")
    return 0 if outcome.sound else 1


if __name__ == "__main__":
    sys.exit(main())
