"""`make load`: 2,000 open streams at 5 events a second and 200 new requests a second for ten minutes.

`penstock up --engine external` runs in front of a mock engine (`bench/gateway/mock_engine.py`). 200 requests a second
arrive at constant intervals. As long as fewer than 2,000 streams are open, the next one is a stream of 30 to 90
seconds; all others are whole answers of 16 tokens. At the end: no error but refusals, which are sent again; the memory
of each process is flat after the first quarter; every request has one row with all its tokens, and no hold is left.

Examples:
  make load
  make load ARGS="--seconds 60 --streams 500 --rate 50"
  make load ARGS=--publish
"""

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bench.gateway.load import Target
from bench.gateway.load_process import end_process
from bench.gateway.targets import Cores, Rig
from bench.load import report
from bench.load.client import Counts, Options
from bench.load.memory import private_bytes
from bench.load.result import Result, Sample, settled
from bench.performance import unpublishable
from bench.processes import Groups, cpu_by_group
from bench.provenance import commit_of, provenance
from bench.stack import ROOT

OUT = ROOT / "bench" / "out"
SECONDS, STREAMS, RATE, EVENTS = 600, 2000, 200.0, 5.0
"""The load of issue and page."""
STREAM_S = (30.0, 90.0)
console = Console(stderr=True, highlight=False)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="make load", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of load; default {SECONDS}")
    parser.add_argument(
        "--streams", type=int, default=STREAMS, help=f"open at the same time; default {STREAMS:,}"
    )
    parser.add_argument("--rate", type=float, default=RATE, help=f"new requests a second; default {RATE:g}")
    parser.add_argument(
        "--events", type=float, default=EVENTS, help=f"a second of each stream; default {EVENTS:g}"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the streams' lengths; default 1")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on standard output")
    parser.add_argument("--out", type=Path, help="where the result goes; default: bench/out")
    parser.add_argument(
        "--publish", action="store_true", help="write docs/results/load.md with data and plot"
    )
    return parser.parse_args()


def main() -> int:
    """Load, print, write; return 0 when everything held, else 1."""
    given = arguments()
    commit = commit_of(ROOT)
    short = given.seconds < SECONDS or given.streams < STREAMS or given.rate < RATE or given.events < EVENTS
    if given.publish and (reason := unpublishable(commit, quick=short)):
        raise SystemExit(f"--publish: {reason}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that all that was started ends
    result = _run(given)
    result.conditions = {
        **provenance(), "commit": commit, "streams": given.streams, "rate_per_s": given.rate,
        "events_per_s": given.events, "seconds": given.seconds,
    }  # fmt: skip
    OUT.mkdir(parents=True, exist_ok=True)
    path = given.out or OUT / f"load-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"
    found = asdict(result)
    path.write_text(json.dumps(found) + "\n")
    written = [path, report.plot(found, path.with_suffix(".png"))]
    if given.publish:
        written += report.publish(found)
    print(json.dumps(found) if given.json else report.text(found))
    for each in written:
        console.print(f"written: {each}")
    return 0 if not report.missed(found) else 1


def _run(given: argparse.Namespace) -> Result:
    with ExitStack() as stack:
        rig = Rig(Cores.chosen(""), stack)
        with console.status("starting the engine and penstock up"):
            engine = rig.start_engine()
            rig.start_platform("penstock", ROOT, engine)
            asyncio.run(rig.ready())
        (target,) = (each for each in rig.targets if each.name == "penstock")
        options = Options(
            target, given.streams, given.events, given.rate, given.seconds, STREAM_S, given.seed
        )
        url = json.loads((rig.scratch / "penstock" / "runtime.json").read_text())["database_url"]
        result = _load(stack, target, options)
        with console.status("waiting until everything is settled"):
            result.books = asyncio.run(settled(url, result.last.finished))
        return result


def _load(stack: ExitStack, target: Target, options: Options) -> Result:
    """Run the clients and take a sample of the processes with each of their lines."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.load.client"],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    stack.callback(end_process, process)
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the clients have no pipes")
    result = Result()
    groups: Groups = target.groups
    before, began = cpu_by_group(groups), time.perf_counter()
    process.stdin.write(msgspec.json.encode(options) + b"\n")
    process.stdin.flush()
    columns = (TextColumn("{task.description:56}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, refresh_per_second=1) as progress:
        task = progress.add_task("", total=options.seconds)
        for line in process.stdout:
            counts = msgspec.json.decode(line, type=Counts)
            result.samples.append(_sample(counts, groups))
            progress.update(
                task, completed=counts.at_s,
                description=f"{counts.open_streams:,} streams, {counts.finished:,} answered, "
                f"{sum(counts.errors.values())} errors",
            )  # fmt: skip
            if not console.is_terminal and len(result.samples) % 6 == 0:
                progress.console.print(f"{counts.at_s:.0f} s: {counts}", markup=False)
    if not result.samples or not result.last.done:
        raise RuntimeError("the clients have died")
    after, took_s = cpu_by_group(groups), time.perf_counter() - began
    result.cores = {name: round((after[name] - before[name]) / took_s, 4) for name in after}
    return result


def _sample(counts: Counts, groups: Groups) -> Sample:
    memory: dict[str, Any] = {name: private_bytes(pid, tree=tree) for name, (pid, tree) in groups.items()}
    return Sample(**msgspec.to_builtins(counts), memory=memory)


if __name__ == "__main__":
    sys.exit(main())
