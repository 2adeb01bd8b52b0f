"""`penstock engine`: the engine's own environment."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from cli.added_model import engine_environment
from cli.context import AsJson, emit
from core.errors import InvalidRequest
from workers import engine_install
from workers.engine_install import EngineStatus, Kind, Step
from workers.engine_lock import compile_lock, read_lock
from workers.engine_spec import EngineSpec, environment

app = typer.Typer(help="vLLM in an environment of its own.", no_args_is_help=True)

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
    version: Annotated[
        str, typer.Option("--version", help="Another version of vLLM, for a rollout; it needs --lock.")
    ] = "",
    lock: Annotated[
        Path | None,
        typer.Option("--lock", help="What that version needs, with hashes (`penstock engine lock`)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Install vLLM for this machine; goes on where an interrupted run stopped.

    With --version it is installed beside the pinned one, such as .engine-0.33.0, where rollouts look for it.

    Example: penstock engine install --version 0.33.0 --lock engine-0.33.0.txt
    """
    if bool(version) != (lock is not None):
        raise InvalidRequest(
            "give --version and --lock together; `penstock engine lock VERSION` makes a lock", param="lock"
        )
    found = _kind(kind)
    own = engine_environment(engine_env)
    env = environment(own, EngineSpec(engine_version=version))
    if version and env.resolve() == own.resolve():
        raise InvalidRequest(
            f"{env} leads to {own}, the environment of the pinned version; remove the link", param="version"
        )
    release = None if lock is None else read_lock(lock, version, found)
    add = partial(engine_install.install, env, found, torch_index=torch_index, release=release, lock=lock)
    result = _with_bar(add) if sys.stderr.isatty() else add(engine_install.print_step)
    emit(result, as_json)


@app.command("lock")
def lock_(
    version: Annotated[str, typer.Argument(help="Version of vLLM on PyPI, such as 0.33.0.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write it (engine-VERSION.txt).")
    ] = None,
    kind: Annotated[str, typer.Option("--kind", help="auto | cpu | gpu.")] = "auto",
    torch_index: Annotated[
        str, typer.Option("--torch-index", help="Index, or directory, with PyTorch's CPU builds.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Write what a version of vLLM needs, with hashes, so that every host installs the same.

    Example: penstock engine lock 0.33.0 --kind gpu -o engine-0.33.0.txt
    """
    written = compile_lock(
        version, _kind(kind), output or Path(f"engine-{version}.txt"), torch_index=torch_index
    )
    emit({"lock": str(written), "packages": written.read_text().count("==")}, as_json)


@app.command()
def status(
    engine_env: EngineEnv = None,
    version: Annotated[str, typer.Option("--version", help="Of another version beside the pinned one.")] = "",
    as_json: AsJson = False,
) -> None:
    """What is installed.

    Example: penstock engine status --json
    """
    env = environment(engine_environment(engine_env), EngineSpec(engine_version=version))
    emit(engine_install.status(env), as_json)


def _kind(text: str) -> Kind:
    match text:
        case "auto":
            return engine_install.wanted_kind()
        case "gpu" | "cpu":
            return text
        case _:
            raise InvalidRequest(f"--kind is {text!r}; it must be auto, cpu or gpu", param="kind")


def _with_bar(add: Callable[[Callable[[Step], None]], EngineStatus]) -> EngineStatus:
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

        return add(show)
