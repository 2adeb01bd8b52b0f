"""`python -m bench.placement`: every workload, policy, load and seed; writes docs/results/placement.md, plots and data.

What has been played is kept under bench/out/placement, so that it can be stopped and goes on where it was. Remove that
directory after a change to scheduler or simulator: figures of two versions do not mix.
"""

import argparse
import os
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from bench.placement.publish import publish
from bench.provenance import provenance
from core.errors import PenstockError
from sim.pool.compare import Players, Setting
from sim.pool.comparison import Outcome, Plan, ProgressCallbacks, compare
from sim.pool.journal import Journal
from sim.pool.registry import names_of
from sim.pool.workloads.registry import catalogue, models_of

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "bench" / "out" / "placement"


def main() -> None:
    args = arguments()
    workloads = args.workloads.split(",") if args.workloads else list(catalogue())
    policies = tuple(names_of(args.policies, args.prefix))
    loads = tuple(float(load) for load in args.loads.split(","))
    began = time.monotonic()
    outcomes = {}
    with Players(args.workers) as players:
        for number, workload in enumerate(workloads, 1):
            several = models_of(workload)
            models = several if len(several) > 1 else (args.model,)
            setting = Setting(workload, models, args.hosts, args.seconds, args.prefix, args.shed)
            plan = Plan(setting, policies, loads, args.seeds)
            journal = Journal(args.work / f"{workload}.jsonl", plan.subject(), resume=True)
            outcomes[workload] = played(plan, players, journal, f"{workload} ({number}/{len(workloads)})")
    conditions = {
        **provenance(),
        "model": args.model,
        "hosts": args.hosts,
        "seeds": args.seeds,
        "shed": args.shed,
        "prefix": args.prefix,
        "minutes": round((time.monotonic() - began) / 60, 1),
    }
    for path in publish(outcomes, conditions, args.docs):
        print(path)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.placement", description=__doc__)
    parser.add_argument("--workloads", help="comma-separated; default: all")
    parser.add_argument("--policies", default="all")
    parser.add_argument("--loads", default="0.7,1.0,1.3")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--model", default="llama-3.3-70b")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.0, help="0 = by the knee of each workload")
    parser.add_argument("--prefix", default="mirrored", help="mirrored or exact")
    parser.add_argument("--shed", default="zero", help="zero or equal")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--work", type=Path, default=WORK, help="where rows are kept")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="where data, images and tables go")
    return parser.parse_args()


def played(plan: Plan, players: Players, journal: Journal, title: str) -> Outcome:
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
        console=Console(stderr=True),
    ) as progress:  # fmt: skip
        task = progress.add_task(f"{title}: knee", total=None)
        watch = ProgressCallbacks(
            on_rate_tried=lambda rate, share: progress.update(
                task, description=f"{title}: {rate:.2f}/s {share:.0%} in time"
            ),
            on_start=lambda knee, setting, done, total: progress.update(
                task, total=total, completed=done,
                description=f"{title}: knee {knee.rate_rps:.2f}/s, {setting.seconds:.0f} s runs",
            ),
            on_cell_done=lambda cell: progress.advance(task),
        )  # fmt: skip
        return compare(plan, players, journal, watch)


if __name__ == "__main__":
    try:
        main()
    except PenstockError as error:
        sys.exit(f"bench.placement: {error.message}")
    except KeyboardInterrupt:
        sys.exit("stopped; the same command goes on where this left off")
