"""`penstock sim scenario`: runs a policy against known failure modes of routers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from cli.blocking import check_output, run_blocking
from cli.commands.sim.played import played_line
from cli.context import AsJson
from core.errors import InvalidRequest
from sim.pool.registry import OURS
from sim.pool.scenarios.registry import SCENARIOS, SEEDS, Verdict, judge, scenario
from sim.pool.scenarios.report import markdown


def register(group: typer.Typer) -> None:
    """Add the command to `penstock sim`."""
    group.command(
        "scenario",
        epilog="Example: penstock sim scenario shared-system-prompt --policy llmd_sticky",
    )(command)


def command(
    name: Annotated[str | None, typer.Argument(help="One scenario; default: all of them.")] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy", help=f"Who is put to the test; default: {OURS}. `sim compare` names the others."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each; figures are the worst of them.")] = len(
        SEEDS
    ),
    page: Annotated[
        Path | None,
        typer.Option("--markdown", help="Write the page of all scenarios here; with who must fail."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Play failure modes that routers shipped, and say which figures are as they must be.

    Ends with code 1 when one is not.
    """

    def act() -> list[Verdict]:
        if page is not None and (name is not None or policy is not None):
            raise InvalidRequest(
                "the page is about all scenarios; give neither a name nor a policy", param="markdown"
            )
        check_output(page)
        chosen = list(SCENARIOS) if name is None else [scenario(name).name]
        who = (OURS if policy is None else policy,)
        plan = [
            (each, each_policy)
            for each in chosen
            for each_policy in (who if page is None else (*who, *SCENARIOS[each].must_fail))
        ]
        return _run_with_progress(plan, range(1, seeds + 1))

    verdicts = run_blocking(act)
    if page is not None:
        by_name = {each: [row for row in verdicts if row.scenario.name == each] for each in SCENARIOS}
        page.write_text(markdown(by_name, played_line()))
        typer.echo(str(page))
        verdicts = [each for each in verdicts if each.policy == OURS]
    elif as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode([_as_json(each) for each in verdicts])).decode())
    else:
        Console().print(_table(verdicts))
    if not all(each.ok for each in verdicts):
        raise typer.Exit(1)


def _run_with_progress(plan: Sequence[tuple[str, str]], seeds: Sequence[int]) -> list[Verdict]:
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(plan) * len(seeds))
        verdicts = []
        for name, policy in plan:
            progress.update(task, description=f"{name}, {policy}")
            verdicts.append(judge(SCENARIOS[name], policy, seeds, tick=lambda: progress.advance(task)))
    return verdicts


def _table(verdicts: Sequence[Verdict]) -> Table:
    table = Table(title=f"Scenarios under {verdicts[0].policy}", title_justify="left")
    for column in ("scenario", "", "what", "figure", "must be"):
        table.add_column(column, justify="right" if column == "figure" else "left")
    for verdict in verdicts:
        head = verdict.scenario.name, "[green]pass[/green]" if verdict.ok else "[red]FAIL[/red]"
        for number, finding in enumerate(verdict.findings, 1):
            figure = finding.figure if finding.ok else f"[red]{finding.figure}[/red]"
            last = number == len(verdict.findings)
            table.add_row(*head, finding.what, figure, finding.bound, end_section=last)
            head = "", ""
    return table


def _as_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "scenario": verdict.scenario.name,
        "source": verdict.scenario.source,
        "policy": verdict.policy,
        "passed": verdict.ok,
        "findings": [
            {
                "what": finding.what,
                "value": finding.value,
                "unit": finding.unit,
                "limit": finding.limit,
                "kind": "at_least" if finding.least else "at_most",
                "passed": finding.ok,
            }
            for finding in verdict.findings
        ],
    }
