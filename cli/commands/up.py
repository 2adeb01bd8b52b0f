"""`penstock up`: the whole platform on this machine."""

import asyncio
import logging
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cli.display import Display
from cli.rundir import RunDir
from core.errors import InvalidRequest
from core.logs import JsonFormatter

app = typer.Typer()


class Engine(StrEnum):
    """The engine that serves the model."""

    AUTO = "auto"
    VLLM = "vllm"
    SIM = "sim"
    EXTERNAL = "external"


@app.command()
def up(
    data_dir: Annotated[
        Path, typer.Option("--data-dir", envvar="PENSTOCK_DATA_DIR", help="Where all state is kept.")
    ] = Path(".penstock"),
    port: Annotated[
        int | None,
        typer.Option("--port", min=0, max=65535, help="Customer API; default 8000 or a free one, 0 = any."),
    ] = None,
    console_port: Annotated[
        int | None,
        typer.Option(
            "--console-port", min=0, max=65535, help="Console; default 8001 or a free one, 0 = any."
        ),
    ] = None,
    engine: Annotated[
        Engine, typer.Option("--engine", help="auto: vLLM on GPUs if there are any, else on the CPU.")
    ] = Engine.AUTO,
    engine_url: Annotated[
        str,
        typer.Option("--engine-url", help="With --engine external: base URL of an OpenAI-compatible engine."),
    ] = "",
    model: Annotated[
        str, typer.Option("--model", help="Model to serve; default: one that fits this machine.")
    ] = "",
    replicas: Annotated[int, typer.Option("--replicas", min=1, max=64, help="Engines to start.")] = 1,
    api_workers: Annotated[int, typer.Option("--api-workers", min=1, max=64, help="API processes.")] = 1,
    ready_file: Annotated[
        Path | None, typer.Option("--ready-file", help="JSON about everything, written when it answers.")
    ] = None,
    no_demo: Annotated[bool, typer.Option("--no-demo", help="Make no demo organisation and key.")] = False,
) -> None:
    """Run everything on this machine: stores, scheduler, engine, API, jobs and console. Ctrl-C stops it.

    Example: penstock up --engine sim --port 8080
    """
    if (engine is Engine.EXTERNAL) != bool(engine_url):
        raise InvalidRequest("--engine external and --engine-url URL go together")
    if engine_url and not engine_url.startswith(("http://", "https://")):
        raise InvalidRequest(f"--engine-url must begin with http:// or https://, not {engine_url!r}")
    from cli.stack import Options, Platform  # all roles' packages: too slow for --help

    options = Options(
        data_dir=data_dir,
        port=port,
        console_port=console_port,
        engine=str(engine),
        engine_url=engine_url,
        model=model,
        replicas=replicas,
        api_workers=api_workers,
        ready_file=ready_file.resolve() if ready_file else None,
        demo=not no_demo,
    )
    run_dir = RunDir(data_dir)
    run_dir.acquire()
    try:
        _log_to(run_dir.logs / "up.log")
        asyncio.run(Platform(options, run_dir, Display()).run())
    finally:
        run_dir.release()


def _log_to(path: Path) -> None:
    """Log to a file, because the display uses the terminal."""
    handler = logging.FileHandler(path)
    handler.setFormatter(JsonFormatter("up"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
