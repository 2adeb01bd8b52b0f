"""`make simulate-money`: play schedules of the money path until one fails.

Run as `python -m tests.simulation`; a seed that failed is replayed with `--seed N --log`.
"""

import argparse
import json
import logging
import sys
import time
from collections import Counter

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.simulation.mutants import MUTANTS
from tests.simulation.play import Result, play


def main() -> int:
    """Play the schedules that the arguments ask for; 0 when all of them hold, 1 when one does not."""
    arguments = _parser().parse_args()
    if not arguments.log:
        logging.disable(logging.CRITICAL)
    console = Console(stderr=arguments.json, highlight=False)
    change = MUTANTS[arguments.mutant] if arguments.mutant else None
    if arguments.log:
        result = play(
            arguments.seed,
            change=change,
            always_busy=arguments.busy,
            log=lambda line: console.print(line, markup=False),
        )
        _show_failure(console, result)
        return 1 if result.problems else 0
    totals, failures = _Totals(), []
    columns = (TextColumn("schedules"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("schedules", total=arguments.schedules)
        for seed in range(arguments.seed, arguments.seed + arguments.schedules):
            result = play(seed, change=change, always_busy=arguments.busy)
            totals.add(result)
            if result.problems:
                failures.append(result)
                _show_failure(console, result)
                if len(failures) >= arguments.stop_after:
                    break
            progress.advance(task)
    facts = totals.facts(arguments.seed, failures)
    if arguments.json:
        print(json.dumps(facts, indent=2))
    else:
        _show(console, facts)
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make simulate-money",
        description="Play random schedules of the money path on virtual time, with faults; check the books after each.",
        epilog='Example: make simulate-money ARGS="--schedules 10000"; replay a failure: ARGS="--seed 158 --log".',
    )
    parser.add_argument("--schedules", type=int, default=10_000, help="schedules to play (10000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first one (0)")
    parser.add_argument("--stop-after", type=int, default=1, metavar="N", help="stop after N failures (1)")
    parser.add_argument("--log", action="store_true", help="play one schedule and print its events")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), metavar="NAME", help="play a faulty variant")
    parser.add_argument("--busy", action="store_true", help="only schedules in which spools are compacted")
    parser.add_argument("--json", action="store_true", help="print figures and failures as JSON")
    return parser


class _Totals:
    """Sums over schedules."""

    def __init__(self) -> None:
        self.schedules = self.requests = self.points = 0
        self.virtual_s = 0.0
        self.outcomes: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self._began = time.process_time()

    def add(self, result: Result) -> None:
        """Add one schedule."""
        self.schedules += 1
        self.requests += result.requests
        self.points += result.points
        self.virtual_s += result.virtual_s
        self.outcomes.update(result.outcomes)
        self.faults.update(result.faults)

    def facts(self, seed: int, failures: list[Result]) -> dict[str, object]:
        """The sums, with the CPU time since the first schedule."""
        return {
            "schedules": self.schedules,
            "first_seed": seed,
            "failures": [
                {"seed": one.seed, "faults": one.faults, "problems": one.problems} for one in failures
            ],
            "cpu_s": round(time.process_time() - self._began, 2),
            "virtual_s": round(self.virtual_s, 1),
            "requests": self.requests,
            "points": self.points,
            "outcomes": dict(self.outcomes.most_common()),
            "faults": dict(self.faults.most_common()),
        }


def _show_failure(console: Console, result: Result) -> None:
    if result.problems:
        console.print(f"seed {result.seed} fails; faults: {', '.join(result.faults) or 'none'}", markup=False)
        for problem in result.problems:
            console.print(f"  {problem}", markup=False)
        console.print(f'  replay: make simulate-money ARGS="--seed {result.seed} --log"', markup=False)


def _show(console: Console, facts: dict[str, object]) -> None:
    table = Table(show_header=False, box=None)
    for name, value in facts.items():
        if name != "failures":
            shown = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
            table.add_row(name, shown)
    console.print(table)
    console.print("all schedules hold" if not facts["failures"] else "a schedule fails")


if __name__ == "__main__":
    sys.exit(main())
