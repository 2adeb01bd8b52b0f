"""`penstock sim validate`: accuracy of the simulator's step model."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn
from rich.table import Table

from cli.blocking import run_blocking
from cli.context import AsJson
from sim.pool.validation.measured import CARRIED, Measurement, read_measurement
from sim.pool.validation.published import AnchorResult, check_all
from sim.pool.validation.report import Validation
from sim.pool.validation.report import validate as validate_loads
from workers.catalog import load_catalog


def register(group: typer.Typer) -> None:
    """Add the command to `penstock sim`."""
    group.command(epilog='Example: penstock sim validate --fit-on "near the knee"')(validate)


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
    as_json: AsJson = False,
) -> None:
    """Compare the step model with published figures, and with a measured run of the real vLLM."""

    def act() -> tuple[list[AnchorResult], Validation]:
        measurement = read_measurement(measured or CARRIED)
        return check_all(load_catalog()), _fitted(measurement, fit_on)

    checked, validation = run_blocking(act)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(_as_json(checked, validation))).decode())
        return
    console = Console()
    console.print(_published_table(checked))
    console.print(_measured_table(validation))
    figures = validation.fitted
    console.print(
        f"fitted on {validation.fit_on!r}: R {figures.prefill_tokens_per_s:,.0f} tok/s, "
        f"alpha {1e3 * figures.step_base_s:.2f} ms, beta {1e3 * figures.step_per_seq_s:.3f} ms, "
        f"gamma {1e9 * figures.step_per_kv_token_s:.1f} ns, outside the steps {1e3 * figures.overhead_s:.1f} ms; "
        f"median error of what was not fitted: {validation.median_error():.1%}"
    )


def _fitted(measurement: Measurement, fit_on: str) -> Validation:
    with Progress(
        *Progress.get_default_columns(), TimeElapsedColumn(), console=Console(stderr=True), transient=True
    ) as progress:
        task = progress.add_task("fitting the step model", total=None)

        def tick(loss: float) -> None:
            progress.update(task, advance=1, description=f"fitting the step model, error {loss:.1%}")

        return validate_loads(measurement, fit_on, tick=tick)


def _as_json(checked: list[AnchorResult], validation: Validation) -> dict[str, Any]:
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
        for each in checked
    ]
    measured = msgspec.to_builtins(validation) | {"median_error": validation.median_error()}
    return {"published": published, "measured": measured}


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
