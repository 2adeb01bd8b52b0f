"""`python -m bench.pools` (make bench-pools): a day of demand on droplets that come and go, beside the autoscaler's own
simulation of it.

Writes docs/data/pools.json, docs/images/pools.svg and docs/results/pools.md; takes some minutes on virtual time.

example: python -m bench.pools --hours 3 --docs /tmp
"""

import argparse
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from bench.pools.play import Days, days_of
from bench.pools.publish import publish
from bench.provenance import provenance

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    args = arguments()
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=Console(stderr=True)
    ) as progress:
        task = progress.add_task("", total=None)
        found: Days = days_of(
            args.model,
            args.workloads.split(","),
            day_s=3600.0 * args.hours,
            peak_rps=args.peak,
            seed=args.seed,
            on_progress=lambda words: progress.update(task, description=words),
        )
    for path in publish(found, {**provenance(), "seed": args.seed}, args.docs):
        print(path)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.pools",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="deepseek-v3.2", help="NAME or NAME:PROFILE of the catalog")
    parser.add_argument("--workloads", default="diurnal,office,flash", help="days, with commas")
    parser.add_argument("--hours", type=float, default=24.0, help="length of a day; 24 = not compressed")
    parser.add_argument("--peak", type=float, default=6.0, help="requests a second at the day's peak")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="where data, image and page go")
    return parser.parse_args()


if __name__ == "__main__":
    main()
