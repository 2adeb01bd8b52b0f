"""`penstock sim validate`: accuracy of the simulator's step model."""

import os
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn
from rich.table import Table

from cli.blocking import check_output, run_blocking
from cli.commands.sim.played import played_line
from cli.context import AsJson
from sim.pool.validation.measured import CARRIED, Measurement, read_measurement
from sim.pool.validation.page import markdown
from sim.pool.validation.published import AnchorResult, check_all
from sim.pool.validation.report import Validation
from sim.pool.validation.report import validate as validate_loads
from sim.pool.validation.sweep_plot import plot_sweeps
from sim.pool.validation.sweep_report import FEW_USERS, SweepError, check_catalog, overall, unvalidated
from sim.pool.validation.sweeps import SHIPPED, Sweep, read_sweeps
from workers.catalog import load_catalog


def register(group: typer.Typer) -> None:
    """Add the command to `penstock sim`."""
    group.command(epilog='Example: penstock sim validate --fit-on "near the knee"')(validate)


class Checked(NamedTuple):
    """Everything that the command compares."""

    sweeps: list[SweepError]
    unvalidated: list[str]
    """Profiles whose figures no sweep validates."""
    published: list[AnchorResult]
    measured: Validation


def validate(
    measured: Annotated[
        Path | None,
        typer.Option(
            help="A measurement by `python -m bench.engine`; default: the one that comes along (vLLM on CPU)."
        ),
    ] = None,
    fit_on: Annotated[
        str, typer.Option(help="The load whose times the model is fitted to; it predicts the others.")
    ] = "near the knee",
    sweeps: Annotated[
        Path | None,
        typer.Option(help="Sweeps in CSV, as `sim fit` reads them; default: those that come along."),
    ] = None,
    page: Annotated[Path | None, typer.Option("--markdown", help="Write the page here.")] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Write throughput per GPU against interactivity here, as .svg or .png."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the step model with published sweeps and figures, and with a measured run of the real vLLM.

    Sweeps count where they were kept out of the fit of the catalog's figures (`penstock sim fit`).
    """

    def act() -> Checked:
        check_output(page)
        check_output(plot)
        checked = _check(read_measurement(measured or CARRIED), fit_on, read_sweeps(sweeps or SHIPPED))
        if plot is not None:
            plot_sweeps(checked.sweeps, plot)
        return checked

    checked = run_blocking(act)
    if page is not None:
        drawn = None if plot is None else os.path.relpath(plot, page.parent)
        page.write_text(markdown(*checked, played=played_line(), plot=drawn), encoding="utf-8")
        typer.echo(str(page))
    elif as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(_as_json(checked))).decode())
    else:
        _print(checked)


def _check(measurement: Measurement, fit_on: str, sweeps: dict[str, Sweep]) -> Checked:
    catalog = load_catalog()
    with Progress(
        *Progress.get_default_columns(), TimeElapsedColumn(), console=Console(stderr=True), transient=True
    ) as progress:
        task = progress.add_task("replaying", total=None)
        errors = check_catalog(
            catalog, sweeps, tick=lambda name: progress.update(task, description=f"replaying {name}")
        )
    return Checked(errors, unvalidated(catalog, sweeps), check_all(catalog), _fitted(measurement, fit_on))


def _print(checked: Checked) -> None:
    console = Console()
    console.print(_sweep_table(checked.sweeps))
    tpot, ttft = overall(checked.sweeps)
    console.print(
        f"median errors of what was kept out: TPOT {tpot:.1%}, TTFT {ttft:.1%} below {FEW_USERS} users; unvalidated, "
        f"for want of a sweep: {', '.join(checked.unvalidated)}"
    )
    console.print(_published_table(checked.published))
    console.print(_measured_table(checked.measured))
    figures = checked.measured.fitted
    console.print(
        f"fitted on {checked.measured.fit_on!r}: R {figures.prefill_tokens_per_s:,.0f} tok/s, "
        f"alpha {1e3 * figures.step_base_s:.2f} ms, beta {1e3 * figures.step_per_seq_s:.3f} ms, "
        f"gamma {1e9 * figures.step_per_kv_token_s:.1f} ns, outside the steps {1e3 * figures.overhead_s:.1f} ms; "
        f"median error of what was not fitted: {checked.measured.median_error():.1%}"
    )


def _fitted(measurement: Measurement, fit_on: str) -> Validation:
    with Progress(
        *Progress.get_default_columns(), TimeElapsedColumn(), console=Console(stderr=True), transient=True
    ) as progress:
        task = progress.add_task("fitting the step model", total=None)

        def tick(loss: float) -> None:
            progress.update(task, advance=1, description=f"fitting the step model, error {loss:.1%}")

        return validate_loads(measurement, fit_on, tick=tick)


def _as_json(checked: Checked) -> dict[str, Any]:
    published = [
        {
            "name": each.anchor.name,
            "model": each.anchor.model,
            "profile": each.anchor.profile,
            "unit": each.anchor.unit,
            "published": each.anchor.published,
            "predicted": each.predicted,
            "error": each.error,
            "calibrated": each.anchor.calibrated,
            "source": each.anchor.source,
        }
        for each in checked.published
    ]
    sweeps = [
        msgspec.to_builtins(each)
        | {
            "tpot_median_error": each.tpot_median("held out"),
            "ttft_median_error": each.ttft_median("held out"),
            "throughput_median_error": each.throughput_median(),
        }
        for each in checked.sweeps
    ]
    measured = msgspec.to_builtins(checked.measured) | {"median_error": checked.measured.median_error()}
    return {
        "sweeps": sweeps,
        "unvalidated": checked.unvalidated,
        "published": published,
        "measured": measured,
    }


def _sweep_table(sweeps: list[SweepError]) -> Table:
    table = Table(title="Sweeps: median errors, worst point", title_justify="left")
    for name in (
        "sweep",
        "profiles",
        "TPOT fitted",
        "kept out",
        "TTFT kept out",
        "throughput",
        "worst TPOT",
        "cause",
    ):
        table.add_column(name, justify="left" if name in ("sweep", "profiles", "cause") else "right")
    for each in sweeps:
        medians = (
            each.tpot_median("fitted"),
            each.tpot_median("held out"),
            each.ttft_median("held out"),
            each.throughput_median(),
        )
        worst = each.worst
        table.add_row(
            each.title,
            "\n".join(each.profiles),
            *("-" if error is None else f"{error:.1%}" for error in medians),
            f"{worst.tpot_error:+.0%} at {worst.shape}, {worst.concurrency}",
            each.cause,
        )
    return table


def _published_table(checked: list[AnchorResult]) -> Table:
    table = Table(title="Published figures", title_justify="left")
    for name in ("model", "figure", "published", "model says", "error", "", "source"):
        table.add_column(name, justify="right" if name in ("published", "model says", "error") else "left")
    for each in checked:
        anchor = each.anchor
        table.add_row(
            f"{anchor.model} {anchor.profile}",
            anchor.name,
            f"{anchor.published:,.4g} {anchor.unit}",
            f"{each.predicted:,.4g} {anchor.unit}",
            f"{each.error:+.1%}",
            "calibrated" if anchor.calibrated else "predicted",
            anchor.source,
        )
    return table


def _measured_table(validation: Validation) -> Table:
    title = f"{validation.engine}, {validation.machine}, {validation.date}: measured -> model"
    table = Table(title=title, title_justify="left")
    names = list(validation.loads[0].measured)
    for name in ("load", *names):
        table.add_column(name, justify="left" if name == "load" else "right")
    for load in validation.loads:
        cells = [
            f"{1e3 * load.measured[name]:.1f} -> {1e3 * load.predicted[name]:.1f} ms\n{load.errors[name]:+.1%}"
            for name in names
        ]
        label = f"{load.load} ({load.rate:g}/s)\n{'fitted' if load.fitted else 'predicted'}"
        table.add_row(label, *cells)
    return table
