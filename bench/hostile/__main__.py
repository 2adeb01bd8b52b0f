"""`make bench-hostile`: how far chunks come behind the engine, with and without hostile bodies of other customers.

Paced streams of one tenant run through a whole platform, in turn with nothing else and with hostile bodies of three
other tenants. Every chunk carries the time when the engine wrote it. `api waited`: seconds in which the event loop was
ready to run and had no processor; where it is large, the table shows the machine and not the platform.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from bench.gateway.load import Target
from bench.gateway.load_process import LoadProcess, end_process
from bench.gateway.mock_engine import CONTEXT, EACH, MODEL
from bench.gateway.targets import MAX_NUM_SEQS, Cores, Rig, url
from bench.hostile import report
from bench.performance import unpublishable
from bench.processes import waited_s
from bench.provenance import commit_of, provenance
from bench.stack import ROOT, Stack
from gateway.limits import body_limit

OUT = ROOT / "bench" / "out"
STREAMS, PACE_MS, RATE, SECONDS, PAIRS = 64, 50, 100.0, 10.0, 6
"""A whole run. Six pairs are the fewest whose extremes hold the median with 95 % (sign test)."""
SETTLE_S = 3.0
"""Seconds that the flood runs before and after the streams are measured."""
console = Console(stderr=True)


def arguments() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="example: python -m bench.hostile --pairs 2 --seconds 5",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--streams", type=int, default=STREAMS, help=f"default {STREAMS}")
    parser.add_argument(
        "--pace-ms", type=int, default=PACE_MS, help=f"between the chunks of a stream; default {PACE_MS}"
    )
    parser.add_argument("--rate", type=float, default=RATE, help=f"hostile bodies a second; default {RATE:g}")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help=f"of each measurement; default {SECONDS:g}"
    )
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"default {PAIRS}")
    parser.add_argument("--cores", default="", help="processors of the platform, such as 0,1; default: all")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on standard output")
    parser.add_argument("--out", type=Path, help="where the result goes; default: bench/out")
    parser.add_argument("--publish", action="store_true", help="write docs/results/hostile.md and its data")
    return parser.parse_args()


def main() -> int:
    """Measure, print, write; return 0 when the target is met, else 1."""
    given = arguments()
    commit = commit_of(ROOT)
    short = given.pairs < PAIRS or given.seconds < SECONDS or given.streams < STREAMS or given.rate < RATE
    if given.publish and (reason := unpublishable(commit, quick=short)):
        raise SystemExit(f"--publish: {reason}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that all that was started ends
    pairs, answers = measured(given)
    found = {
        "conditions": {
            **provenance(), "commit": commit, "streams": given.streams, "pace_ms": given.pace_ms,
            "rate_per_s": given.rate, "seconds": given.seconds,
            "load_average": round(psutil.getloadavg()[0], 1),
        },
        "pairs": pairs,
        "answers": answers,
    }  # fmt: skip
    OUT.mkdir(parents=True, exist_ok=True)
    path = given.out or OUT / f"hostile-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"
    path.write_text(json.dumps(found) + "\n")
    print(json.dumps(found) if given.json else report.text(found))
    for each in [path, *(report.publish(found) if given.publish else [])]:
        console.print(f"written: {each}")
    return 0 if report.met(found) else 1


def measured(given: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return the results of all pairs, `quiet` and `hostile`, and the flood's answers by body and status."""
    with ExitStack() as stack:
        rig = Rig(Cores.chosen(given.cores), stack)
        target, hostile = start(rig, stack)
        load = LoadProcess(rig.cores.others)
        stack.callback(load.close)
        pairs, answers = [], {}
        for number in range(given.pairs):
            console.print(f"pair {number + 1} of {given.pairs}")
            quiet = streams(given, load, target)
            flood = start_flood(given, target, hostile, rig.cores)
            stack.callback(end_process, flood)
            disturbed = streams(given, load, target)
            answers = json.loads(flood.communicate()[0])
            pairs.append({"quiet": quiet, "hostile": disturbed})
        return pairs, answers


def start(rig: Rig, stack: ExitStack) -> tuple[Target, list[str]]:
    """Start engine and platform; return the platform as a target, and the keys of three hostile customers."""
    engine = rig.start_engine()
    flags = ("--engine", "external", "--engine-url", url(engine), "--max-num-seqs", str(MAX_NUM_SEQS))
    platform = Stack(ROOT, rig.scratch / "penstock", *flags, cores=rig.cores.gateways)
    stack.callback(platform.stop)
    with console.status("starting penstock up"):
        platform.start()
        target = Target(
            "penstock", platform.port, MODEL, key=platform.make_tenant(), groups=dict(platform.groups)
        )
        rig.targets.append(target)
        asyncio.run(rig.ready())
    return target, [platform.make_tenant(f"Hostile {number}") for number in range(3)]


def streams(given: argparse.Namespace, load: LoadProcess, target: Target) -> dict[str, Any]:
    """Measure the paced streams. Exits when they fail."""
    api = target.groups["api"][0]
    waited = waited_s(api)
    found = load.run(
        "streams", target, count=given.streams, seconds=given.seconds, ramp_per_s=200, stamps=True,
        seed=EACH + given.pace_ms, max_tokens=int((given.seconds + 30) * 1000 / given.pace_ms),
    )  # fmt: skip
    if "error" in found:
        raise SystemExit(found["error"])
    return found | {"waited_s": waited_s(api) - waited}


def start_flood(
    given: argparse.Namespace, target: Target, keys: list[str], cores: Cores
) -> subprocess.Popen[bytes]:
    """Start the flood and wait until its bodies are made."""
    limit = body_limit(CONTEXT, 1)
    options = {
        "--port": target.port, "--model": MODEL, "--size": limit - 4096, "--rate": given.rate,
        "--seconds": given.seconds + 2 * SETTLE_S,
    }  # fmt: skip
    argv = [sys.executable, "-m", "bench.hostile.flood"]
    argv += [str(part) for option in options.items() for part in option]
    argv += [part for key in keys for part in ("--key", key)]
    process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, env=dict(os.environ))
    if cores.others:
        os.sched_setaffinity(process.pid, set(cores.others))
    if process.stdout is None or process.stdout.readline() != b"ready\n":
        end_process(process)
        raise SystemExit("the flood did not start")
    return process


if __name__ == "__main__":
    raise SystemExit(main())
