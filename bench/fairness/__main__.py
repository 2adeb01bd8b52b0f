"""`python -m bench.fairness` (make bench-fairness): throughput and fairness of our queue beside plain VTC.

Backlogged tenants with documents of their own, more than the caches hold, on the simulator. Writes
docs/data/fairness.json, docs/images/scheduling-fairness.svg and docs/results/fairness.md; takes some minutes.

example: python -m bench.fairness --seeds 3 --seconds 40 --docs /tmp
"""

import argparse
import os
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.fairness.cells import cells, one
from bench.fairness.publish import Runs, publish
from bench.provenance import provenance
from sim.pool.fairness_runs import CASES, Figures

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    args = arguments()
    runs = played(args)
    conditions = {
        **provenance(),
        "model": args.model,
        "seeds": args.seeds,
        "seconds": args.seconds,
    }
    for path in publish(runs, conditions, args.docs):
        print(path)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.fairness",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each run; its first third is warm-up")
    parser.add_argument("--model", default="llama-3.3-70b")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="where data, image and page go")
    return parser.parse_args()


def played(args: argparse.Namespace) -> Runs:
    """Run every cell with every seed and return the figures."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as pool,
        Progress(*columns, console=console) as progress,
    ):
        task = progress.add_task("runs", total=len(cells()) * args.seeds)

        def start(index: int, name: str, seed: int) -> Future[Figures]:
            future = pool.submit(one, index, name, args.model, args.seconds, seed)
            future.add_done_callback(lambda _: progress.advance(task))
            return future

        futures = {
            (CASES[index].name, name): [start(index, name, seed) for seed in range(1, args.seeds + 1)]
            for index, name in cells()
        }
        return {cell: [each.result() for each in seeds] for cell, seeds in futures.items()}


if __name__ == "__main__":
    main()
