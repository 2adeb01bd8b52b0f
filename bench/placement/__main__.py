"""`python -m bench.placement`: the studies of `studies.py`; writes the pages on placement and ablation with their data
and plots, and the summary in docs/scheduling.md.

What has been played is kept under bench/out/placement, so that it can be stopped and goes on where it was; pages are
written after every study. Figures of two versions do not mix: a file there that was begun at another commit, or with
changed files, is refused; remove it to play it anew. With --keep, studies that are not played now stay on the pages
with the facts of their run, and pages are written once at the end; use it only where our rows of a study that stays
are the same at both commits.
"""

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from bench.placement.data import Played
from bench.placement.publish import publish
from bench.placement.studies import STUDIES, Study
from bench.provenance import commit_of, provenance
from core.errors import InvalidRequest, PenstockError
from sim.pool.compare import Players, Setting
from sim.pool.comparison import Outcome, Plan, ProgressCallbacks, compare
from sim.pool.journal import Journal
from sim.pool.knee import Knee
from sim.pool.registry import OURS

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "bench" / "out" / "placement"


def main() -> None:
    args = arguments()
    knees: dict[tuple[str, str, int], Knee] = {}
    played: list[Played] = []
    chosen = [study for study in STUDIES if any(part in study.name for part in args.only.split(","))]
    with Players(args.workers) as players:
        for number, study in enumerate(chosen, 1):
            title = f"{study.group}: {study.title} ({number}/{len(chosen)})"
            commits, outcomes = zip(
                *(play(study, shed, args, players, knees, title) for shed in sheds(study)), strict=True
            )
            rows = [row for outcome in outcomes for row in outcome.rows]
            played.append(Played(study, outcomes[0].knee, outcomes[0].setting, rows, commits[0]))
            if args.keep and number < len(chosen):
                continue
            conditions = {**provenance(), "seeds": args.seeds}
            for path in publish(played, conditions, args.docs, keep=args.keep):
                print(path)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.placement", description=__doc__)
    parser.add_argument("--only", default="", help="parts of the names of studies, with commas; default: all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--keep", action="store_true", help="leave studies that are not played now on the pages"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--work", type=Path, default=WORK, help="where rows are kept")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="where data, images and tables go")
    return parser.parse_args()


def sheds(study: Study) -> list[str]:
    """Return the ways of shedding of a study, each once."""
    return list(dict.fromkeys(shed for shed, _ in study.points))


def play(
    study: Study,
    shed: str,
    args: argparse.Namespace,
    players: Players,
    knees: dict[tuple[str, str, int], Knee],
    title: str,
) -> tuple[str, Outcome]:
    """Play what the journal does not have yet; returns the commit at which the journal was begun, too."""
    loads = tuple(load for each, load in study.points if each == shed)
    setting = Setting(study.workload, (study.model,), study.hosts, 0.0, shed=shed)
    plan = Plan(setting, tuple(dict.fromkeys((OURS, *study.policies))), loads, args.seeds)
    journal = opened(args.work / f"{study.name}-{shed}.jsonl", plan.subject(), commit_of(ROOT))
    pool = study.workload, study.model, study.hosts
    known = knees.get(pool) or kept_knee(journal)
    outcome = with_progress(plan, players, journal, f"{title}, shed {shed}", known)
    if "knee" not in journal.notes:
        journal.note("knee", {name: getattr(outcome.knee, name) for name in Knee.__slots__})
    knees[pool] = outcome.knee
    return journal.notes["commit"], outcome


def opened(path: Path, subject: Mapping[str, Any], at: str) -> Journal:
    """Begin a journal at a commit, or go on with the one that was begun at it.

    Raises InvalidRequest where the journal's figures are of another version of the code, or may be: it states another
    commit or none, or one that does not tell the code (`unknown`, or + for changed files).
    """
    journal = Journal(path, subject, resume=True)
    if not journal.rows and not journal.notes:
        journal.note("commit", at)
        return journal
    begun = journal.notes.get("commit", "")
    if begun != at or begun == "unknown" or begun.endswith("+"):
        raise InvalidRequest(
            f"{path} was begun at commit {begun or '(not stated)'}, this is {at}: figures of two versions do not mix; "
            "check out that commit without changed files, or remove the file to play it anew",
            param="work",
        )
    return journal


def kept_knee(journal: Journal) -> Knee | None:
    """Return the knee that a journal has noted."""
    known = journal.notes.get("knee")
    return None if known is None else Knee(**known)


def with_progress(plan: Plan, players: Players, journal: Journal, title: str, knee: Knee | None) -> Outcome:
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
        return compare(plan, players, journal, watch, knee=knee)


if __name__ == "__main__":
    try:
        main()
    except PenstockError as error:
        sys.exit(f"bench.placement: {error.message}")
    except KeyboardInterrupt:
        sys.exit("stopped; the same command goes on where this left off")
