"""`penstock sim autoscale`: cost of scaling policies at equal service over simulated days."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from cli.blocking import check_output, run_blocking
from core.errors import InvalidRequest
from scheduler.core.autoscale.state import ModelSpec
from sim.pool.autoscaling import POLICIES, Outcome, Policy, compare, policies_for
from sim.pool.autoscaling_load import Lengths
from sim.pool.autoscaling_report import plot, rows
from sim.pool.autoscaling_scenario import ANTIPHASE, CURVES, Scenario, single_model, two_models
from sim.pool.pool import unvalidated, unvalidated_line
from workers.catalog import Catalog, load_catalog

_BRING_UP = ("sleep", "cold", "droplet")
_WORKLOADS = (*CURVES, ANTIPHASE)


def register(group: typer.Typer) -> None:
    """Add the command to `penstock sim`."""
    group.command(
        "autoscale",
        epilog="Example: penstock sim autoscale --workload diurnal --hours 3 --policies static,wva,penstock --seeds 3",
    )(command)


def command(
    workload: Annotated[
        str, typer.Option(help=f"Day to play: {', '.join(_WORKLOADS)}, all, or several with commas.")
    ] = "diurnal",
    model: Annotated[str, typer.Option(help="NAME or NAME:PROFILE of the catalog.")] = "deepseek-v3.2",
    hours: Annotated[
        float, typer.Option(min=0.5, max=24.0, help="Length of a simulated day; 24 = not compressed.")
    ] = 6.0,
    peak: Annotated[float, typer.Option(min=0.1, help="Requests a second at the day's peak.")] = 6.0,
    prompt: Annotated[float, typer.Option(min=1.0, help="Mean prompt tokens.")] = 9000.0,
    output: Annotated[float, typer.Option(min=1.0, help="Mean answer tokens.")] = 500.0,
    replicas: Annotated[int, typer.Option(min=1, max=256, help="Most replicas that there may be.")] = 14,
    bring_up: Annotated[
        str, typer.Option(help="Where replicas rest, for every policy: sleep (level 1), cold or droplet.")
    ] = "cold",
    policies: Annotated[str, typer.Option(help=f"all, or some of {', '.join(POLICIES)}.")] = "all",
    target: Annotated[
        float, typer.Option(min=0.5, max=0.9999, help="Share of promises that every policy is tuned to keep.")
    ] = 0.99,
    seeds: Annotated[int, typer.Option(min=1, help="Days compared.")] = 10,
    tuning_days: Annotated[int, typer.Option(min=1, help="Other days on which the knobs are tuned.")] = 2,
    json_out: Annotated[
        Path | None, typer.Option("--json", help="Write the figures to this file; - prints them.")
    ] = None,
    plot_out: Annotated[Path | None, typer.Option("--plot", help="Draw the first day to this file.")] = None,
) -> None:
    """Compare scaling policies: GPU hours, promises kept, scale events. The same seeds give the same figures."""

    def act() -> list[list[Outcome]]:
        check_output(json_out)
        check_output(plot_out)
        catalog = load_catalog()
        lengths = Lengths(prompt=prompt, output=output)
        scenarios = [
            _scenario(
                name,
                _spec(catalog, model),
                catalog,
                bring_up,
                day_s=3600.0 * hours,
                peak=peak,
                lengths=lengths,
                replicas=replicas,
            )
            for name in _names(workload, _WORKLOADS, "workload")
        ]
        chosen = [_policies(policies, scenario.workload) for scenario in scenarios]
        with Progress(
            SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(),
            console=Console(stderr=True), transient=True,
        ) as progress:  # fmt: skip
            task = progress.add_task("", total=None)
            return [
                compare(
                    scenario, some, target=target, seeds=seeds, tuning_days=tuning_days,
                    on_progress=lambda words: progress.update(task, description=words),
                )
                for scenario, some in zip(scenarios, chosen, strict=True)
            ]  # fmt: skip

    groups = run_blocking(act)
    if plot_out is not None:
        plot(groups, plot_out)
    bare = unvalidated([model], load_catalog())
    basis = {"model": model, "figures": "unvalidated" if bare else "validated"}
    found = [{**basis, **row} for outcomes in groups for row in rows(outcomes)]
    if json_out is not None and str(json_out) != "-":
        json_out.write_text(json.dumps(found, indent=2) + "\n")
    if json_out is not None and str(json_out) == "-":
        typer.echo(json.dumps(found, indent=2))
    else:
        _show(found)
        for line in unvalidated_line(bare):
            typer.echo(line)


def _scenario(
    name: str, spec: ModelSpec, catalog: Catalog, bring_up: str, *, day_s: float, peak: float, lengths: Lengths,
    replicas: int,
) -> Scenario:  # fmt: skip
    """The scenario of a workload. In ANTIPHASE two models have half the peak each and sleep at level 1.

    `day_s` is in simulated seconds, `peak` in requests/s.
    """
    if name == ANTIPHASE:
        other = msgspec.structs.replace(spec, model=f"{spec.model} (evening)")
        return two_models(
            spec, other, day_s=day_s, peak_rps=(peak / 2, peak / 2), lengths=lengths, hosts=replicas,
            wake_s=_wake_s(catalog, "sleep"),
        )  # fmt: skip
    return single_model(
        name, spec, day_s=day_s, peak_rps=peak, lengths=lengths, replicas=replicas,
        wake_s=_wake_s(catalog, bring_up),
    )  # fmt: skip


def _policies(names: str, workload: str) -> list[Policy]:
    """The named policies that apply to the workload. Raises InvalidRequest when none does."""
    known = policies_for(workload)
    found = [known[name] for name in _names(names, POLICIES, "policy") if name in known]
    if not found:
        raise InvalidRequest(f"{workload} is played with: {', '.join(known)}")
    return found


def _names(text: str, known: Iterable[str], what: str) -> list[str]:
    """Comma-separated names, or all. Raises InvalidRequest that lists the known names."""
    options = list(known)
    chosen = options if text == "all" else [name.strip() for name in text.split(",")]
    for name in chosen:
        if name not in options:
            raise InvalidRequest(f"unknown {what} {name!r}; there are: all, {', '.join(options)}")
    return chosen


def _spec(catalog: Catalog, name: str) -> ModelSpec:
    model, _, profile = name.partition(":")
    known = catalog.model(model)
    return ModelSpec(model, known.profile(profile).capacity, known.service_level, {})


def _wake_s(catalog: Catalog, bring_up: str) -> float:
    if bring_up not in _BRING_UP:
        raise InvalidRequest(f"unknown --bring-up {bring_up!r}; there are: {', '.join(_BRING_UP)}")
    figures = catalog.ladder
    if figures is None:
        raise InvalidRequest("the catalog has no [ladder]")
    if bring_up == "sleep":
        return figures.sleep_1_wake_s.value
    cold = figures.stopped_wake_s.value
    return cold if bring_up == "cold" else cold + figures.create_s.value


def _show(found: list[dict[str, object]]) -> None:
    table = Table(
        title="Scaling policies at equal service (mean over days, 95 % interval)", header_style="bold"
    )
    columns = (
        "workload",
        "policy",
        "promises kept",
        "first token",
        "per token",
        "GPU hours",
        "less than static",
        "ours saves",
        "TTFT p99 s",
        "scale events",
    )
    for column in columns:
        table.add_column(column, justify="left" if column in {"workload", "policy"} else "right")
    for row in found:
        table.add_row(
            str(row["workload"]),
            str(row["policy"]),
            _percent(row, "attainment", 2),
            _percent(row, "ttft_attainment", 2),
            _percent(row, "tpot_attainment", 2),
            _number(row, "gpu_hours", 1),
            _percent(row, "saves_static", 1),
            _percent(row, "ours_saves", 1),
            _number(row, "ttft_p99_s", 2),
            _number(row, "scale_events", 0),
        )
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def _number(row: dict[str, object], name: str, digits: int, scale: float = 1.0) -> str:
    value, half = row.get(name), row.get(f"{name}_ci")
    if not isinstance(value, float | int):
        return "-"
    spread = f" ±{scale * half:.{digits}f}" if isinstance(half, float | int) else ""
    return f"{scale * value:.{digits}f}{spread}"


def _percent(row: dict[str, object], name: str, digits: int) -> str:
    text = _number(row, name, digits, 100.0)
    return text if text == "-" else f"{text} %"
