"""`penstock engine`: the engine's own environment."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from cli.context import AsJson, emit
from workers import engine_install
from workers.engine_install import EngineStatus, Step

app = typer.Typer(help="vLLM in an environment of its own.", no_args_is_help=True)

_CHECKOUT = Path(__file__).resolve().parents[2]

EngineEnv = Annotated[
    Path | None,
    typer.Option(
        "--engine-env", help="The environment; default: $PENSTOCK_ENGINE_ENV, else .engine beside the code."
    ),
]


@app.command()
def install(
    engine_env: EngineEnv = None,
    kind: Annotated[str, typer.Option("--kind", help="auto | cpu | gpu.")] = "auto",
    torch_index: Annotated[
        str, typer.Option("--torch-index", help="Address of an index with PyTorch's CPU builds.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Install vLLM for this machine; goes on where an interrupted run stopped.

    Example: penstock engine install
    """
    if kind not in ("auto", "cpu", "gpu"):
        raise typer.BadParameter(f"{kind!r} is not auto, cpu or gpu", param_hint="--kind")
    wanted = engine_install.wanted_kind() if kind == "auto" else ("gpu" if kind == "gpu" else "cpu")
    env = _env(engine_env)
    if sys.stderr.isatty():
        result = _with_bar(env, wanted, torch_index)
    else:
        result = engine_install.install(env, wanted, engine_install.print_step, torch_index=torch_index)
    emit(result, as_json)


@app.command()
def status(engine_env: EngineEnv = None, as_json: AsJson = False) -> None:
    """What is installed.

    Example: penstock engine status --json
    """
    emit(engine_install.status(_env(engine_env)), as_json)


def _env(given: Path | None) -> Path:
    return given or Path(os.environ.get("PENSTOCK_ENGINE_ENV") or _CHECKOUT / ".engine")


def _with_bar(env: Path, kind: engine_install.Kind, torch_index: str) -> EngineStatus:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", style="dim", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("engine", total=None, note="")

        def show(step: Step) -> None:
            title = f"{step.number}/{step.total} {step.title}"
            progress.update(
                bar, description=title, total=step.total, completed=step.number - 1, note=step.note[:60]
            )

        return engine_install.install(env, kind, show, torch_index=torch_index)
