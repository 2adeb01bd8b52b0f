"""`penstock up`: the whole platform on this machine."""

import asyncio
import logging
import os
from enum import StrEnum
from functools import partial
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.context import emit
from cli.display import Display
from cli.rundir import RunDir
from core.errors import InvalidRequest
from core.log_files import MAX_BYTES
from core.logs import JsonFormatter

if TYPE_CHECKING:
    from cli.external import ExternalOptions
    from cli.stack import Options

app = typer.Typer()


class Engine(StrEnum):
    """The engine that serves the model."""

    AUTO = "auto"
    VLLM = "vllm"
    SIM = "sim"
    EXTERNAL = "external"


DataDir = Annotated[
    Path, typer.Option("--data-dir", envvar="PENSTOCK_DATA_DIR", help="Where all state is kept.")
]
Port = Annotated[
    int | None,
    typer.Option("--port", min=0, max=65535, help="Customer API; default 8000 or a free one, 0 = any."),
]
ConsolePort = Annotated[
    int | None,
    typer.Option("--console-port", min=0, max=65535, help="Console; default 8001 or a free one, 0 = any."),
]
EngineKind = Annotated[
    Engine, typer.Option("--engine", help="auto: vLLM on GPUs if there are any, else on the CPU.")
]
EngineUrls = Annotated[
    list[str] | None,
    typer.Option(
        "--engine-url",
        help="With --engine external: base URL of an OpenAI-compatible engine; repeat it for several.",
    ),
]
EngineKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--engine-key-file", help="File with the API key of external engines; or set PENSTOCK_ENGINE_KEY."
    ),
]
PriceInput = Annotated[
    str | None,
    typer.Option("--price-input", help="Dollars per million input tokens of external engines' models."),
]
PriceCachedInput = Annotated[
    str | None,
    typer.Option("--price-cached-input", help="The same of cached input; default: the price of input."),
]
PriceOutput = Annotated[str | None, typer.Option("--price-output", help="The same of output tokens.")]
MaxNumSeqs = Annotated[
    int,
    typer.Option(
        "--max-num-seqs", min=1, max=65536, help="Sequences that an external engine runs at a time."
    ),
]
EngineFleet = Annotated[
    int,
    typer.Option(
        "--engine-fleet",
        min=0,
        max=4096,
        help="Engines behind each --engine-url, where it is a router that does not list them itself.",
    ),
]
ContextLen = Annotated[
    int,
    typer.Option(
        "--context-len", min=0, max=2**31 - 1, help="Context length where an external engine states none."
    ),
]
Embeddings = Annotated[
    list[str] | None,
    typer.Option(
        "--embeddings",
        help="Model of an external engine that is served on /v1/embeddings only; repeat it for several.",
    ),
]
Model = Annotated[
    str,
    typer.Option(
        "--model",
        help="Model to serve; default: one that fits this machine, or all that external engines list.",
    ),
]
Profile = Annotated[
    str,
    typer.Option(
        "--profile",
        envvar="PENSTOCK_PROFILE",
        help="Engine profile of the model, by its name in the catalog; default: one that fits this machine.",
    ),
]
Replicas = Annotated[int, typer.Option("--replicas", min=1, max=64, help="Engines to start.")]
Schedulers = Annotated[
    int,
    typer.Option("--schedulers", min=1, max=8, help="Schedulers: one serves, the others stand by."),
]
ApiWorkers = Annotated[int, typer.Option("--api-workers", min=1, max=64, help="API processes.")]
DrainS = Annotated[
    int, typer.Option("--drain-s", min=0, help="Seconds that Ctrl-C leaves to open answers; again: none.")
]
WalArchive = Annotated[
    Path | None,
    typer.Option(
        "--wal-archive",
        envvar="PENSTOCK_WAL_ARCHIVE",
        help="Directory on another disk where the embedded PostgreSQL archives its log, for `penstock restore`. Later "
        "starts go on with it; `none` ends it.",
    ),
]
ReadyFile = Annotated[
    Path | None, typer.Option("--ready-file", help="JSON about everything, written when it answers.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check the settings and print what would be started; start nothing.")
]
NoDemo = Annotated[bool, typer.Option("--no-demo", help="Make no demo organisation and key.")]


@app.command()
def up(
    data_dir: DataDir = Path(".penstock"),
    port: Port = None,
    console_port: ConsolePort = None,
    engine: EngineKind = Engine.AUTO,
    engine_url: EngineUrls = None,
    engine_key_file: EngineKeyFile = None,
    price_input: PriceInput = None,
    price_cached_input: PriceCachedInput = None,
    price_output: PriceOutput = None,
    max_num_seqs: MaxNumSeqs = 256,
    engine_fleet: EngineFleet = 0,
    context_len: ContextLen = 0,
    embeddings: Embeddings = None,
    model: Model = "",
    profile: Profile = "",
    replicas: Replicas = 1,
    api_workers: ApiWorkers = 1,
    schedulers: Schedulers = 1,
    drain_s: DrainS = 10,
    wal_archive: WalArchive = None,
    ready_file: ReadyFile = None,
    no_demo: NoDemo = False,
    dry_run: DryRun = False,
) -> None:
    """Run everything on this machine: stores, scheduler, engine, API, jobs and console. Ctrl-C stops it.

    Example: penstock up --engine sim --port 8080

    In front of an engine that runs already (vLLM, SGLang, llama.cpp, Ollama, ...):

    penstock up --engine external --engine-url http://127.0.0.1:8000 --price-input 0.20 --price-output 0.60
    """
    prices = (price_input, price_cached_input, price_output)
    _check_external_only(engine, engine_url, (engine_key_file, embeddings, *prices))
    from cli.stack import Options  # all roles' packages: too slow for --help

    options = Options(
        data_dir=data_dir,
        port=port,
        console_port=console_port,
        engine=str(engine),
        external=_external(
            engine_url, engine_key_file, prices, max_num_seqs, engine_fleet, context_len, embeddings
        ),
        model=model,
        profile=profile,
        replicas=replicas,
        api_workers=api_workers,
        schedulers=schedulers,
        drain_s=drain_s,
        wal_archive=wal_archive,
        ready_file=ready_file.resolve() if ready_file else None,
        demo=not no_demo,
    )
    if dry_run:
        from cli.dry_run import planned

        emit(planned(options), as_json=False, title="penstock up would start")
        return
    _run(options)


def _check_external_only(engine: Engine, urls: list[str] | None, options: tuple[object, ...]) -> None:
    """Raise InvalidRequest for options of external engines without them, and for external engines without `urls`."""
    if (engine is Engine.EXTERNAL) != bool(urls):
        raise InvalidRequest("--engine external and --engine-url URL go together")
    if engine is not Engine.EXTERNAL and any(value is not None for value in options):
        raise InvalidRequest("prices, --embeddings and --engine-key-file are options of --engine external")


def _external(
    urls: list[str] | None,
    key_file: Path | None,
    prices: tuple[str | None, str | None, str | None],
    max_num_seqs: int,
    fleet: int,
    context_len: int,
    embeddings: list[str] | None,
) -> "ExternalOptions":
    """The options of external engines, whose `prices` are those of input, cached input and output.

    Raises InvalidRequest for what is not valid, before anything starts.
    """
    from cli.external import ExternalOptions
    from workers.engine_models import engine_urls

    price_input, price_cached_input, price_output = prices
    external = ExternalOptions(
        urls=tuple(engine_urls(",".join(urls))) if urls else (),
        key=_engine_key(key_file),
        max_num_seqs=max_num_seqs,
        fleet=fleet,
        context_len=context_len,
        embeddings=tuple(embeddings or ()),
        price_input=price_input,
        price_cached_input=price_cached_input,
        price_output=price_output,
    )
    _ = external.rates  # refuses invalid prices
    return external


def _run(options: "Options") -> None:
    """Run the platform in its data directory, which it locks, until it is stopped."""
    from cli.stack import Platform

    run_dir = RunDir(options.data_dir)
    run_dir.acquire(partial(typer.echo, err=True))
    try:
        _log_to(run_dir.logs / "up.log")
        asyncio.run(Platform(options, run_dir, Display()).run())
    finally:
        run_dir.release()


def _engine_key(path: Path | None) -> str:
    """The API key of external engines, from a file or PENSTOCK_ENGINE_KEY. Raises InvalidRequest without the key.

    There is no option for the key itself, because process lists show command lines.
    """
    try:
        key = os.environ.get("PENSTOCK_ENGINE_KEY", "") if path is None else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise InvalidRequest(
            "--engine-key-file cannot be read; it must name a text file with the engine's API key"
        ) from None
    key = key.strip()
    if not (key.isascii() and key.isprintable()) or (path is not None and not key):
        raise InvalidRequest("the engine's API key must be one line of printable ASCII characters")
    return key


def _log_to(path: Path) -> None:
    """Log to a file, because the display uses the terminal."""
    handler = RotatingFileHandler(path, maxBytes=MAX_BYTES, backupCount=1)
    handler.setFormatter(JsonFormatter("up"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
