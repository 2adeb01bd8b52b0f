"""`python -m bench.gateway`: what a request and a chunk cost through the whole platform, beside other gateways.

Starts the platform as `penstock up --engine external` does, with a tenant that has a key, limits and prepaid credit, in
front of a mock engine, and in the same run the bare engine, a bare ASGI pass-through, a process that only reads and
writes, and every gateway that it finds in --peers-bin. CPU is counted by process, and what each process uses without
load is measured and subtracted.

Another checkout beside this one: --repo PATH or --repo NAME=PATH (its own .venv is used where there is one). Both run
at the same time and are measured in turn, which is how a change is judged on a machine that is not quiet:

  python -m bench.gateway --quick --only cpu --only chunks --repo before=../penstock-before
"""

import argparse
import asyncio
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.gateway.cells import SECTIONS, Cell, cells
from bench.gateway.load import Target
from bench.gateway.load_process import LoadProcess
from bench.gateway.peers import PEERS
from bench.gateway.tables import tables
from bench.gateway.targets import ASKING, FLOORS, MAX_NUM_SEQS, Cores, Rig
from bench.performance import DOCS, FLAME, FLAME_WHOLE, plot, publish, unpublishable
from bench.provenance import commit_of, provenance
from bench.report import Record, Report
from bench.stack import ROOT, up_knows

OUT = ROOT / "bench" / "out"
console = Console(stderr=True)
FLAME_S = 8
"""Seconds that a flame graph covers."""


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.gateway",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="a rough table in a minute and a quarter")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="sections to measure; repeatable")
    parser.add_argument(
        "--repo", action="append", default=[], metavar="[NAME=]PATH", help="another checkout; repeatable"
    )
    parser.add_argument("--peers-bin", action="append", default=[], type=Path, metavar="DIR",
                        help="folder with programs of other gateways; repeatable")  # fmt: skip
    parser.add_argument(
        "--peer", action="append", choices=[peer.name for peer in PEERS], help="only these gateways"
    )
    parser.add_argument("--no-bare", action="store_true", help="leave both pass-throughs out")
    parser.add_argument(
        "--rounds", type=int, default=10, help="of chunks at 64 and 512 streams, each target in turn"
    )
    parser.add_argument("--rate", type=float, default=200.0, help="requests a second of the latency section")
    parser.add_argument("--cores", default="0" if (os.cpu_count() or 1) > 1 else "",
                        help='processors of the gateways, such as 0,1; "" = all')  # fmt: skip
    parser.add_argument("--json", type=Path, help="where the records go; default: bench/out")
    parser.add_argument(
        "--publish", action="store_true", help="write docs/performance.md with its data and plot"
    )
    parser.add_argument("--flame", type=Path, metavar="PY_SPY",
                        help="program py-spy: draw a flame graph of the API process at 64 streams")  # fmt: skip
    return parser.parse_args()


def main() -> int:
    """Measure, print, write; return the exit status."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that all that was started ends
    given = arguments()
    if given.publish and (reason := unpublishable(commit_of(ROOT), quick=given.quick)):
        raise SystemExit(f"--publish: {reason}")
    report = measured(given)
    OUT.mkdir(parents=True, exist_ok=True)
    path = given.json or OUT / f"gateway-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"
    path.write_text(report.as_json())
    print(tables(report))
    written = [path, plot(report, path.with_suffix(".png"))]
    if given.publish:
        written += publish(gateway=report)
    for each in written:
        console.print(f"written: {each}")
    return 0


def measured(given: argparse.Namespace) -> Report:
    """Start everything, run all cells and return their records."""
    chosen = cells(quick=given.quick, rounds=given.rounds, rate=given.rate, only=given.only or ())
    with ExitStack() as stack:
        rig = Rig(Cores.chosen(given.cores), stack)
        narrow = start(rig, given)
        load = LoadProcess(rig.cores.others)
        stack.callback(load.close)
        if rig.cores.others:
            os.sched_setaffinity(0, rig.cores.others)
        records = run(chosen, rig.targets, load, narrow)
        if given.flame:
            ours = next(each for each in rig.targets if each.name == "penstock")
            for drawn in draw_flames(given.flame, ours, load, DOCS / "images" if given.publish else OUT):
                console.print(f"written: {drawn}")
        conditions = {
            **provenance(), "commit": commit_of(ROOT), "quick": given.quick, "rounds": given.rounds,
            "cores_of_gateways": ",".join(map(str, rig.cores.gateways)) or "all",
            "rate_per_s": given.rate, "load_average": round(psutil.getloadavg()[0], 1), "notes": rig.notes,
        }  # fmt: skip
    return Report(conditions, [target.name for target in rig.targets], records)


def start(rig: Rig, given: argparse.Namespace) -> dict[str, int]:
    """Start all targets; return the most streams of those that cannot hold any number."""
    repos = {"penstock": ROOT}
    for number, text in enumerate(given.repo, 1):
        name, _, path = text.rpartition("=")
        repos[name or f"other-{number}"] = Path(path)
    with console.status("starting") as status:
        engine = rig.start_engine()
        if not given.no_bare:
            rig.start_floors(engine)
            rig.start_bare(engine)
        for name, repo in repos.items():
            status.update(f"starting {name}: penstock up")
            platform = rig.start_platform(name, repo, engine)
            if name == "penstock" and not given.no_bare:
                rig.start_asking(engine, platform)
        if given.peers_bin:
            rig.start_peers(given.peers_bin, engine, given.peer)
        status.update("waiting until all answer")
        asyncio.run(rig.ready())
    for note in rig.notes:
        console.print(note)
    narrow = {peer.name: peer.max_streams for peer in PEERS}
    return narrow | {
        name: MAX_NUM_SEQS if up_knows(repo, "--max-num-seqs") else 256 for name, repo in repos.items()
    }


def run(chosen: list[Cell], targets: list[Target], load: LoadProcess, narrow: dict[str, int]) -> list[Record]:
    """Run every cell for every target, in turn; odd rounds in the opposite order.

    What the targets use without load is measured for all in the same seconds. A run that fails is tried once more, and
    both attempts are recorded.
    Ctrl-C and SIGTERM end it with the records so far.
    """
    records: list[Record] = []
    slow = {peer.name: peer.slow for peer in PEERS if peer.slow > 1}
    work = [
        (cell, round_, target)
        for cell in chosen
        for round_ in range(cell.rounds)
        for target in turn(cell, targets, round_)
        if wanted(cell, target, narrow)
        and (target.name not in slow or (not round_ and cell.job != "open_loop"))
    ]
    columns = (TextColumn("{task.description:40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with suppress(KeyboardInterrupt), Progress(*columns, console=console, refresh_per_second=1) as progress:
        task = progress.add_task("", total=len(work))
        for number, (cell, round_, target) in enumerate(work, 1):
            what = f"{cell.section} {cell.key}: {target.name}"
            progress.update(task, description=what)
            if not console.is_terminal:
                progress.console.print(f"{number}/{len(work)} {what}")
            options = cell.options_for(slow.get(target.name, 1))
            for _ in range(2):
                result = load.run(cell.job, target, **options)
                for name, part in (
                    by_target(result).items() if cell.job == "idle" else ((target.name, result),)
                ):
                    records.append(Record(cell.section, cell.key, name, round_, part))
                if "error" not in result:
                    break
                progress.console.print(f"{what}: {result['error']}")
            progress.advance(task)
    return records


def draw_flames(program: Path, target: Target, load: LoadProcess, folder: Path) -> list[Path]:
    """Draw the time of the API process by call: while it relays 64 streams, and while it gives whole answers.

    Returns the pictures. Raises RuntimeError when py-spy fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    streams = next(
        each for each in cells(quick=True, rounds=1, rate=1.0, only=("chunks",)) if each.key == "64"
    )
    lasting = {"seconds": FLAME_S + 3}
    whole = {"rate": 500.0, "max_tokens": 1}
    return [
        draw_flame(program, target, folder / FLAME, "64 streams",
                   lambda: load.run(streams.job, target, **(streams.options | lasting))),
        draw_flame(program, target, folder / FLAME_WHOLE, "500 whole answers a second",
                   lambda: load.run("open_loop", target, **(whole | lasting))),
    ]  # fmt: skip


def draw_flame(program: Path, target: Target, path: Path, what: str, work: Callable[[], object]) -> Path:
    """Draw the time of the API process by call, native code included, while `work` runs. Raises RuntimeError."""
    argv = [
        str(program), "record", "--native", "--rate", "400", "--duration", str(FLAME_S), "--format", "flamegraph",
        "--output", str(path), "--pid", str(target.groups["api"][0]),
    ]  # fmt: skip
    with ThreadPoolExecutor(1) as pool:

        def profile() -> subprocess.CompletedProcess[str]:
            time.sleep(2)  # until all streams are open
            return subprocess.run(argv, capture_output=True, text=True, check=False)

        profiled = pool.submit(profile)
        work()
        done = profiled.result()
    if done.returncode or not path.exists():
        raise RuntimeError(f"py-spy drew no flame graph: {done.stderr.strip()}")
    title = f"Time of the API process by call, {FLAME_S} s of {what}; threads that only wait are at the right"
    path.write_text(re.sub(r'(<text id="title"[^>]*>)[^<]*', rf"\1{title}", path.read_text()))
    return path


def turn(cell: Cell, targets: list[Target], round_: int) -> list[Target]:
    """Return the targets of a cell in their order; one for all of them together where nothing is sent."""
    if cell.job == "idle":
        groups = {
            f"{target.name}/{name}": group
            for target in targets if target.name != "direct"
            for name, group in target.groups.items() if psutil.pid_exists(group[0])
        }  # fmt: skip
        return [Target("all", 0, "", groups=groups)]
    return targets if round_ % 2 == 0 else targets[::-1]


def by_target(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the parts of a result of all targets together, by target; an error is one of "all"."""
    if "error" in result:
        return {"all": result}
    found: dict[str, dict[str, Any]] = {}
    for process, used in result["cpu_s"].items():
        target, _, name = process.partition("/")
        part = found.setdefault(target, {"cpu_s": {}, "window_s": result["window_s"], "refused": {}})
        part["cpu_s"][name] = used
    return found


def wanted(cell: Cell, target: Target, narrow: dict[str, int]) -> bool:
    """Return whether a cell is measured for a target."""
    if target.name == "direct":
        return cell.direct_too
    if target.name in FLOORS:
        return cell.section in ("idle", "chunks")
    if target.name == ASKING:
        return cell.section in ("idle", "ttft")
    return cell.needs_streams <= narrow.get(target.name, cell.needs_streams)


if __name__ == "__main__":
    raise SystemExit(main())
