"""`python -m bench.through`: what the real vLLM loses when it is asked through the platform.

Starts `penstock up` with its own vLLM (`make engine` first) and sends the same loads to the engine's own port and to
the customer API, in turn. Tokens per second, times to first token and between tokens, and the CPU of the engine and
of every process of the platform, at several numbers of requests at the same time. Requests that are refused for lack
of capacity are sent again; their codes are listed.

With enough processors, give each side its own: --platform-cores 0,1 --engine-cores 2-5 --load-cores 6,7

example: python -m bench.through --quick --at 32
"""

import argparse
import json
import os
import signal
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import psutil
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.gateway.load import Target
from bench.gateway.load_process import LoadProcess
from bench.performance import publish, unpublishable
from bench.provenance import commit_of, provenance
from bench.report import Record, Report
from bench.stack import ROOT, Stack
from bench.through.books import Books
from bench.through.tables import tables
from gateway.interval import stream_interval

OUT = ROOT / "bench" / "out"
CONCURRENCY = (1, 8, 32, 64, 128)
ROUNDS = 9
"""Rounds of a whole run: the fewest whose 95 % interval of the median leaves out the extremes (sign test)."""
WAVES = 6
"""Answers of each caller in one load, so that its start, when all ask at once, and its end weigh little."""
FEWEST = 24
"""Requests of the smallest load."""
COARSE = "direct, coarse"
"""The engine itself, asked for as many tokens per event as the platform asks for."""
PROMPT_WORDS = (10, 60)
console = Console(stderr=True)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.through",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="one pair of short loads, about two minutes")
    parser.add_argument("--at", type=int, nargs="+", default=CONCURRENCY, help="requests at the same time")
    parser.add_argument(
        "--rounds", type=int, help=f"rounds of all targets in turn; default: {ROUNDS}, with --quick 1"
    )
    parser.add_argument(
        "--engine-nice", type=int, default=0, help="added to the niceness of the engine, for a comparison"
    )
    parser.add_argument("--model", default="penstock/tiny", help="a model of the catalog")
    parser.add_argument("--repo", type=Path, default=ROOT, help="checkout of the platform")
    for name, what in (("platform", "platform"), ("engine", "engine"), ("load", "load generator")):
        parser.add_argument(
            f"--{name}-cores", type=cores, default=(), help=f"processors of the {what}, such as 0,2-4"
        )
    parser.add_argument("--json", type=Path, help="where the records go; default: bench/out")
    parser.add_argument(
        "--publish", action="store_true", help="write docs/performance.md with its data and plot"
    )
    return parser.parse_args()


def cores(text: str) -> tuple[int, ...]:
    """Return the processors of a list such as "0,2-4"."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def main() -> int:
    """Measure, print, write; return the exit status."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that all that was started ends
    given = arguments()
    if given.publish and (reason := unpublishable(commit_of(given.repo), quick=given.quick)):
        raise SystemExit(f"--publish: {reason}")
    report = measured(given)
    OUT.mkdir(parents=True, exist_ok=True)
    path = given.json or OUT / f"through-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"
    path.write_text(report.as_json())
    print(tables(report))
    for each in [path, *(publish(through=report) if given.publish else [])]:
        console.print(f"written: {each}")
    return 0


def measured(given: argparse.Namespace) -> Report:
    """Start platform and engine, run all loads and return their records."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-through-")))
        scratch.chmod(0o755)
        flags = ("--engine", "vllm", "--model", given.model)
        platform = Stack(given.repo, scratch / "data", *flags, cores=given.platform_cores)
        stack.callback(platform.stop)
        with console.status("starting penstock up with vLLM"):
            platform.start()
        targets = the_targets(platform)
        for process in engine_processes(platform):
            pin(process.pid, given.engine_cores)
            if given.engine_nice:
                renice(process.pid, given.engine_nice)
        load = LoadProcess(given.load_cores)
        stack.callback(load.close)
        runtime = json.loads((scratch / "data" / "runtime.json").read_text())
        records = run(given, targets, load, Books(runtime["database_url"]))
        conditions = {
            **provenance(), "commit": commit_of(given.repo), "model": given.model, "quick": given.quick,
            "rounds": number_of_rounds(given),
            "cores": {name: getattr(given, f"{name}_cores") for name in ("platform", "engine", "load")},
            "load_average": round(psutil.getloadavg()[0], 1),
        }  # fmt: skip
    return Report(conditions, [target.name for target in targets], records)


def the_targets(platform: Stack) -> list[Target]:
    """Return the engine itself, twice, and the platform before it; CPU is counted by the same processes for all."""
    engine = platform.ready["engines"][0]
    groups = {**platform.groups, "engine": (platform.ready["pids"]["engine"][0], True)}
    model = platform.ready["model"]
    port = int(engine["url"].rsplit(":", 1)[1].strip("/"))
    direct = Target("direct", port, model, key=platform.ready["engine_key"], groups=groups)
    through = Target("through", platform.port, model, key=platform.make_tenant(), groups=groups)
    return [direct, through, msgspec.structs.replace(direct, name=COARSE)]


def engine_processes(platform: Stack) -> list[psutil.Process]:
    """Return the engine's processes."""
    top = psutil.Process(platform.ready["pids"]["engine"][0])
    return [top, *top.children(recursive=True)]


def pin(pid: int, chosen: tuple[int, ...]) -> None:
    """Let all threads of a process run on these processors only; () changes nothing."""
    for thread in psutil.Process(pid).threads() if chosen else ():
        os.sched_setaffinity(thread.id, chosen)


def renice(pid: int, more: int) -> None:
    """Add to the niceness of all threads of a process."""
    for thread in psutil.Process(pid).threads():
        os.setpriority(os.PRIO_PROCESS, thread.id, os.getpriority(os.PRIO_PROCESS, thread.id) + more)


def number_of_rounds(given: argparse.Namespace) -> int:
    """Return how often all targets are measured in turn."""
    return int(given.rounds or (1 if given.quick else ROUNDS))


def run(given: argparse.Namespace, targets: list[Target], load: LoadProcess, books: Books) -> list[Record]:
    """Run all loads, all targets in turn, every second round the other way round.

    Ctrl-C and SIGTERM end it with the records so far.
    """
    tokens = (16, 96) if given.quick else (32, 224)
    work = [
        (at, number, target)
        for at in given.at
        for number in range(number_of_rounds(given))
        for target in (targets if number % 2 == 0 else targets[::-1])
    ]
    records: list[Record] = []
    columns = (TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with suppress(KeyboardInterrupt), Progress(*columns, console=console, refresh_per_second=1) as progress:
        task = progress.add_task("warm-up", total=len(work))
        warm = {"requests": 16, "concurrency": 8, "seed": 0, "words": PROMPT_WORDS, "tokens": (8, 16)}
        for target in targets:
            load.run("mixed", target, **warm)
        records.append(Record("idle", "idle", "through", 0, load.run("idle", targets[1], seconds=5)))
        books.skip()
        for at, number, target in work:
            what = f"{at} at once, {target.name}"
            progress.update(task, description=what)
            if not console.is_terminal:
                progress.console.print(what)
            requests = max(12 if given.quick else FEWEST, at * (2 if given.quick else WAVES))
            shape = {
                "requests": requests,
                "concurrency": at,
                "seed": at,
                "words": PROMPT_WORDS,
                "tokens": tokens,
            }
            result = load.run("mixed", as_asked(target, str(at), records), **shape)
            if "error" in result:
                progress.console.print(f"{what}: {result['error']}")
            elif target.name == "through":
                result |= books.waits(requests)
            records.append(Record("through", str(at), target.name, number, result))
            progress.advance(task)
    return records


def as_asked(target: Target, key: str, records: list[Record]) -> Target:
    """Return the target with the interval that the platform takes at the speed that `direct` had last; others as is."""
    speeds = [
        each.result["tpot_p50_s"]
        for each in records
        if (each.section, each.key, each.target) == ("through", key, "direct") and "error" not in each.result
    ]
    if target.name != COARSE or not speeds:
        return target
    interval = stream_interval(speeds[-1], streamed=True, covered=0)
    return msgspec.structs.replace(target, fields={"stream_interval": interval})


if __name__ == "__main__":
    raise SystemExit(main())
