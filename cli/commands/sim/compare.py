"""`penstock sim compare`: this scheduler and every published policy on the same requests."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from cli.blocking import check_output, run_blocking
from core.errors import InvalidRequest
from sim.pool.compare import MEASURED_ARRIVALS, MEASURED_LIFETIMES, SHEDDING, Players, Setting
from sim.pool.comparison import Outcome, Plan, ProgressCallbacks, compare
from sim.pool.journal import Journal
from sim.pool.knee import SERVED, Knee
from sim.pool.plots import plot
from sim.pool.pool import ReplicaSpec, unvalidated_note
from sim.pool.registry import GROUPS, NAMES, OURS, PREFIX_KINDS, STRONGEST, checked_prefix, names_of
from sim.pool.report import COLUMNS, Standing, cells, standings
from sim.pool.summary import service_levels
from sim.pool.workloads.registry import catalogue, models_of
from workers.catalog import load_catalog

DEFAULT_LOADS = "0.7,1.0,1.3"
_BAR = 40
_WIDTH = 160
"""Columns of the output to a file or a pipe."""
_MAX_LOAD = 100.0
INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 plus the number of SIGINT, as in shells."""


def register(group: typer.Typer) -> None:
    """Add the command to `penstock sim`."""
    group.command(
        "compare",
        epilog="Example: penstock sim compare --workload mooncake-conversation --hosts 2 --policies all --seeds 10 "
        "--json out.json",
    )(command)


def command(
    workload: Annotated[
        str, typer.Option(help=f"Name ({', '.join(catalogue())}), or a file in Mooncake or Azure form.")
    ] = "mooncake-conversation",
    hosts: Annotated[int, typer.Option(min=1, help="Hosts of each model.")] = 2,
    models: Annotated[
        list[str] | None,
        typer.Option("--model", help="NAME or NAME:PROFILE of the catalog; may be given several times."),
    ] = None,
    policies: Annotated[
        str, typer.Option(help=f"`all`, or a list of: {', '.join((*GROUPS, *NAMES))}.")
    ] = "all",
    loads: Annotated[
        str,
        typer.Option(
            help=f"Multiples of the knee: the highest rate at which {STRONGEST} serves {SERVED:.0%} in time."
        ),
    ] = DEFAULT_LOADS,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each load, with seeds 1 to this.")] = 10,
    seconds: Annotated[
        float,
        typer.Option(
            min=0.0,
            help=f"Simulated seconds of a run; 0 = as {MEASURED_ARRIVALS:,.0f} arrivals at the knee and "
            f"{MEASURED_LIFETIMES:g} lifetimes of an answer take.",
        ),
    ] = 0.0,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; default: the machine's cores.")
    ] = None,
    prefix: Annotated[
        str, typer.Option(help=f"What `penstock` knows of prefix caches: {' or '.join(PREFIX_KINDS)}.")
    ] = "mirrored",
    shed: Annotated[
        str, typer.Option(help="zero = no policy refuses requests; equal = all refuse as many as ours does.")
    ] = "zero",
    json_out: Annotated[
        Path | None, typer.Option("--json", help="Write every run's figures to this file; - prints them.")
    ] = None,
    plot_out: Annotated[
        Path | None, typer.Option("--plot", help="Draw goodput over load to this .svg or .png file.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the comparison that was stopped (needs --json FILE).")
    ] = False,
) -> None:
    """Play every policy against the same requests, at several loads and with several seeds.

    Prints a table per load with 95 % confidence intervals by blocks, our lead over each policy on the same blocks,
    and an upper bound that no policy can pass. All policies, three loads and ten seeds take some minutes on two cores.
    """

    def act() -> Outcome:
        if shed not in SHEDDING:
            raise InvalidRequest(f"--shed is {' or '.join(SHEDDING)}, not {shed!r}", param="shed")
        setting = Setting(
            workload, tuple(models or models_of(workload)), hosts, seconds, checked_prefix(prefix), shed
        )
        plan = Plan(setting, tuple(names_of(policies, prefix)), _loads(loads), seeds)
        if plot_out is not None:
            _check_plot(plot_out)
        with Players(workers or os.cpu_count() or 1) as players:
            return _run_with_progress(plan, players, _journal(plan, json_out, resume))

    try:
        outcome = run_blocking(act)
    except KeyboardInterrupt:
        _interrupted(json_out)
    if json_out is not None:
        _write(outcome, json_out)
    ranked = standings(outcome.rows)
    if plot_out is not None:
        plot(ranked, plot_out, "goodput_rps", "requests/s served within both targets")
    if str(json_out) != "-":
        show(outcome, ranked, Console() if sys.stdout.isatty() else Console(width=_WIDTH))


def _write(outcome: Outcome, json_out: Path) -> None:
    """Write every run's figures to a file, whose journal is then no longer needed; - prints them."""
    rows = [{name: value for name, value in row.items() if name != "blocks"} for row in outcome.rows]
    text = json.dumps(rows, indent=1)
    if str(json_out) == "-":
        typer.echo(text)
    else:
        json_out.write_text(text + "\n")
        _journal_path(json_out).unlink(missing_ok=True)


def _interrupted(json_out: Path | None) -> NoReturn:
    """Print how to resume after Ctrl-C, and exit with INTERRUPTED."""
    kept = json_out is not None and str(json_out) != "-" and _journal_path(json_out).exists()
    how = (
        "go on with the same command and --resume"
        if kept
        else "with --json FILE it could go on with --resume"
    )
    typer.echo(f"stopped; {how}", err=True)
    raise typer.Exit(INTERRUPTED) from None


def show(outcome: Outcome, ranked: Sequence[Standing], console: Console) -> None:
    """Print the knee, and for each load a table and bars."""
    console.print(_load_text(outcome.knee, outcome.setting))
    pool = outcome.setting.pool(load_catalog())
    for line in [*targets_text(pool), *unvalidated_note(pool)]:
        console.print(line)
    for load in sorted({each.load for each in ranked}):
        here = [each for each in ranked if each.load == load]
        title = f"{escape(here[0].workload)}, load {load:g} = {here[0].rate_rps:.2f} requests/s, {here[0].seeds} seeds"
        console.print()
        console.print(_table(here, title))
        _bars(here, console)
    console.print()
    console.print(
        "Intervals are of 95 %, by a bootstrap over blocks; ▲ ▼ where we are better or worse beyond chance. A "
        "latency's ratio is ours over theirs."
    )


def targets_text(pool: Sequence[ReplicaSpec]) -> list[str]:
    """The latency targets of a pool's models: one line when they are equal, else one line per model."""
    levels = {model: level.targets for model, level in service_levels(pool).items()}
    alike = len(set(levels.values())) == 1
    return [
        f"In time{'' if alike else f' for {escape(model)}'}: first token within {targets.ttft_s:g} s on top of the "
        f"prompt's own prefill, {1e3 * targets.tpot_s:.0f} ms per further token."
        for model, targets in list(levels.items())[: 1 if alike else None]
    ]


def _run_with_progress(plan: Plan, players: Players, journal: Journal | None) -> Outcome:
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=Console(stderr=True),
    ) as progress:
        task = progress.add_task("finding the knee", total=None)

        def tried(rate: float, share: float) -> None:
            progress.update(
                task, advance=1, description=f"finding the knee: {rate:.2f}/s, {share:.0%} in time"
            )

        def began(knee: Knee, setting: Setting, done: int, total: int) -> None:
            what = (
                f"{len(plan.policies)} policies a cell, {setting.seconds:.0f} s, knee {knee.rate_rps:.2f}/s"
            )
            progress.update(task, total=total, completed=done, description=what)

        return compare(
            plan, players, journal, ProgressCallbacks(tried, began, lambda cell: progress.advance(task))
        )


def _load_text(knee: Knee, setting: Setting) -> str:
    return (
        f"Load 1.0 = {knee.rate_rps:.2f} requests/s: there {STRONGEST} serves {knee.slo_met:.1%} in time "
        f"({knee.runs} rates tried). A run is {setting.seconds:.0f} s of arrivals, {setting.warmup_s:.0f} s of them "
        "warm-up."
    )


def _table(rows: Sequence[Standing], title: str) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "policy" else "right", no_wrap=True)
    for each in rows:
        table.add_row(*cells(each), style="bold green" if each.policy == OURS else None)
    return table


def _bars(rows: Sequence[Standing], console: Console) -> None:
    """Print goodput as bars on a common scale, and the upper bound."""
    bound = max(each.figures.get("bound_rps", 0.0) for each in rows)
    top = max([bound, *(each.goodput.value for each in rows)]) or 1.0
    for each in rows:
        goodput = each.goodput.value
        bar = f"{'█' * round(_BAR * goodput / top):░<{_BAR}s}"
        colour = "green" if each.policy == OURS else "cyan"
        console.print(Text.assemble(f"{each.policy:22s} ", (bar, colour), f" {goodput:.2f}"))
    console.print(
        f"{'bound':22s} {'▔' * round(_BAR * bound / top)} {bound:.2f}: no policy can serve more in time"
    )


def _loads(text: str) -> tuple[float, ...]:
    try:
        loads = tuple(dict.fromkeys(float(part) for part in text.split(",") if part.strip()))
    except ValueError:
        loads = ()
    if not loads or not all(0.0 < load <= _MAX_LOAD for load in loads):
        raise InvalidRequest(f"--loads is a list like {DEFAULT_LOADS}, not {text!r}", param="loads")
    return loads


def _check_plot(path: Path) -> None:
    """Raise InvalidRequest before the long run when the plot could not be written."""
    if path.suffix not in (".svg", ".png"):
        raise InvalidRequest(f"a plot is written as .svg or .png, not {path.name!r}", param="plot")
    check_output(path)


def _journal(plan: Plan, json_out: Path | None, resume: bool) -> Journal | None:
    if json_out is None or str(json_out) == "-":
        if resume:
            raise InvalidRequest(
                "--resume needs --json FILE: what has been played is kept beside it", param="resume"
            )
        return None
    check_output(json_out)
    check_output(_journal_path(json_out))
    return Journal(_journal_path(json_out), plan.subject(), resume=resume)


def _journal_path(json_out: Path) -> Path:
    return json_out.with_name(json_out.name + ".partial")
