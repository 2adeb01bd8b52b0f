"""`make bench-hostile`: how far chunks come behind the engine, with and without hostile bodies of other customers.

Paced streams of one tenant run through a whole platform, in turn with nothing else and with hostile bodies of three
other tenants. Every chunk carries the time when the engine wrote it. `api waited`: seconds in which the event loop was
ready to run and had no processor; where it is large, the table shows the machine and not the platform.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from statistics import median

from rich.console import Console

from bench.gateway.load import Target
from bench.gateway.load_process import LoadProcess, end_process
from bench.gateway.mock_engine import CONTEXT, EACH, MODEL
from bench.gateway.targets import MAX_NUM_SEQS, Cores, Rig, url
from bench.processes import waited_s
from bench.provenance import provenance
from bench.report import table
from bench.stack import ROOT, Stack
from gateway.limits import body_limit

SETTLE_S = 3.0
"""Seconds that the flood runs before and after the streams are measured."""
console = Console(stderr=True)


def arguments() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--pace-ms", type=int, default=50, help="milliseconds between the chunks of a stream")
    parser.add_argument("--rate", type=float, default=100.0, help="hostile bodies a second")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--cores", default="", help="processors of the platform, such as 0,1; default: all")
    return parser.parse_args()


def main() -> int:
    """Measure and print."""
    given = arguments()
    with ExitStack() as stack:
        rig = Rig(Cores.chosen(given.cores), stack)
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
        hostile = [platform.make_tenant(f"Hostile {number}") for number in range(3)]
        load = LoadProcess(rig.cores.others)
        stack.callback(load.close)
        rows, answers = [], {}
        for number in range(given.pairs):
            for name in ("quiet", "hostile"):
                process = start_flood(given, target, hostile, rig.cores) if name == "hostile" else None
                waited = waited_s(target.groups["api"][0])
                found = load.run(
                    "streams", target, count=given.streams, seconds=given.seconds, ramp_per_s=200, stamps=True,
                    seed=EACH + given.pace_ms, max_tokens=int((given.seconds + 30) * 1000 / given.pace_ms),
                )  # fmt: skip
                found["waited_s"] = waited_s(target.groups["api"][0]) - waited
                if process is not None:
                    answers = json.loads(process.communicate()[0])
                if "error" in found:
                    raise SystemExit(found["error"])
                rows.append((number, name, found))
    print(json.dumps(provenance()))
    print(table(HEAD, [row(*each) for each in rows]))
    p99 = {
        kind: [found["delay_p99_ms"] for _, name, found in rows if name == kind]
        for kind in ("quiet", "hostile")
    }
    moved = median(after - before for before, after in zip(p99["quiet"], p99["hostile"], strict=True))
    print(f"\np99 moves by {moved:.1f} ms (median of {given.pairs} pairs)\n")
    print(table(("body: status", "answers"), [(name, str(count)) for name, count in answers.items()]))
    return 0


HEAD = ("pair", "", "chunks", "p50 ms", "p99 ms", "max ms", "lost", "api CPU s/s", "api waited s")


def row(number: int, name: str, found: dict[str, float]) -> tuple[str, ...]:
    """Return one line of the table."""
    times = [f"{found[key]:.1f}" for key in ("delay_p50_ms", "delay_p99_ms", "delay_max_ms")]
    cpu = found["cpu_s"]["api"] / found["window_s"]  # type: ignore[index]
    return (
        str(number),
        name,
        str(found["events"]),
        *times,
        str(found["lost"]),
        f"{cpu:.2f}",
        f"{found['waited_s']:.2f}",
    )


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
