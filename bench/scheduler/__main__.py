"""`python -m bench.scheduler` (make bench-scheduler): what one scheduling decision costs, and how that grows.

A decision is the fair queue's choice and the replica's, with 10,000 requests of 200 tenants queued; what it costs to
move every counter and remember the prompt is shown beside it ("recorded"). Prompts have 1 to 4,096 blocks, even on a
logarithmic scale; every second one continues a conversation. CPU time of the deciding thread is what is held to the
targets; it suffers from whatever shares the core's caches. The garbage collector is on; what exists before the first
decision is frozen out of it, as the service does at start-up.
Writes JSON into bench/out and the plot that docs show.

example: python -m bench.scheduler --decisions 2000 --json
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.provenance import provenance
from bench.scheduler.measure import PARTS, ROUNDS, bytes_per_block, run
from bench.scheduler.plot import plot
from bench.scheduler.world import TENANTS, Size

OUT = Path(__file__).resolve().parents[1] / "out"
PICTURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "bench-scheduler.png"
TARGETS = {"mean_us": 40.0, "p99_us": 100.0}
"""Upper limits of the decision's CPU time in microseconds."""
REPLICAS = (8, 32, 128)
"""Numbers of replicas that are measured."""
BLOCKS = (300_000, 3_000_000)
"""Numbers of cached blocks: every replica may remember 1,024 blocks, 262,144 in total."""
PROMPTS = (1, 16, 128, 1024, 4096)
"""Prompt lengths in blocks, each of which is measured separately."""
WIDTH = 130
"""Width of the tables in characters when no terminal sets one."""


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Measure everything in one run and return the report."""
    full = Size(given.replicas, given.blocks, 1, given.longest, given.queued)
    report: dict[str, Any] = {"conditions": conditions(given), "targets": TARGETS}
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    steps: list[Size] = [replace(full, replicas=count) for count in REPLICAS if count < full.replicas]
    others = [replace(full, cached_blocks=count) for count in BLOCKS if count != full.cached_blocks]
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("full size", total=3 + len(steps) + len(others))

        def on_progress(text: str) -> None:
            progress.update(task, advance=1, description=text)

        ranges = [(length, length) for length in PROMPTS if length <= full.longest]
        report["full"], *report["by_prompt"] = run(full, given.decisions, [(1, full.longest), *ranges])
        report["by_replicas"] = [report["full"]]
        for size in steps:
            on_progress(f"{size.replicas} replicas")
            report["by_replicas"] += run(size, given.decisions)
        report["by_cached_blocks"] = [report["full"]]
        for size in others:
            on_progress(f"{size.cached_blocks:,} cached blocks")
            report["by_cached_blocks"] += run(size, given.decisions)
        on_progress("memory")
        report["bytes_per_block"] = bytes_per_block()
        on_progress("done")
    return report


def conditions(given: argparse.Namespace) -> dict[str, Any]:
    """Return the conditions that must accompany the figures."""
    return {
        **provenance(),
        "decisions": f"{given.decisions} in {ROUNDS} rounds, the best of them counts",
        "queued": given.queued,
        "tenants": TENANTS,
        "prompts": "blocks log-uniform; every second prompt continues a conversation",
        "garbage_collector": "on; the world is frozen out of it",
        "load_average": psutil.getloadavg()[0],
    }


def show(report: dict[str, Any], console: Console) -> bool:
    """Print the table, and return whether the targets are met."""
    table = Table(
        "replicas",
        "cached blocks",
        "prompt blocks",
        "mean us",
        "p50 us",
        "p99 us",
        *PARTS,
        "recorded",
        "dispatch",
    )
    for series in ("by_replicas", "by_cached_blocks", "by_prompt"):
        for point in report[series]:
            shown = point["decision"]
            prompt = f"{point['shortest']:,}-{point['longest']:,}"
            row = [f"{point['replicas']:,}", f"{point['cached_blocks']:,}", prompt]
            row += [f"{shown[name]:.1f}" for name in ("mean_us", "p50_us", "p99_us")]
            table.add_row(
                *row, *(f"{point[name]['mean_us']:.1f}" for name in (*PARTS, "recorded", "dispatch"))
            )
        table.add_section()
    console.print(json.dumps(report["conditions"]), style="dim")
    console.print(table)
    full = report["full"]
    console.print(
        "Columns from choice on: means. A decision is choice and place; recorded is that with opened, which moves the "
        "counters and remembers the prompt; dispatch is the whole call around it, with deadlines, the review of late "
        "requests and the answer."
    )
    console.print(
        f"submit {full['submit']['mean_us']:.1f} us, release {full['release']['mean_us']:.1f} us (mean)"
    )
    console.print(f"{report['bytes_per_block']:.0f} bytes per cached block and replica")
    met = True
    for name, target in TARGETS.items():
        value = full["decision"][name]
        met &= value <= target
        verdict = f"target {name} <= {target:.0f}: {value:.1f} {'met' if value <= target else 'MISSED'}"
        console.print(f"{verdict}; recorded {full['recorded'][name]:.1f}")
    return met


def main() -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replicas", type=int, default=256)
    parser.add_argument("--blocks", type=int, default=1_000_000, help="cached blocks over all replicas")
    parser.add_argument("--longest", type=int, default=4096, help="blocks of the longest prompt")
    parser.add_argument("--queued", type=int, default=10_000, help="requests that wait meanwhile")
    parser.add_argument("--decisions", type=int, default=3000, help="for each point, in all rounds")
    parser.add_argument("--json", action="store_true", help="print the report as JSON, the tables as errors")
    given = parser.parse_args()
    report = measure(given)
    console = Console(stderr=given.json)
    met = show(report, console if console.is_terminal else Console(stderr=given.json, width=WIDTH))
    OUT.mkdir(parents=True, exist_ok=True)
    name = f"scheduler-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"
    (OUT / name).write_text(json.dumps(report, indent=1))
    plot(report, PICTURE)
    written = f"written: bench/out/{name} and docs/images/{PICTURE.name}"
    print(json.dumps(report) if given.json else written)
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
