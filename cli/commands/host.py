"""`penstock host`: this machine as a GPU host."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from cli.context import AsJson, emit, exit_with_error
from core.clock import SystemClock
from core.process_identity import boot_id
from workers.acceptance import record
from workers.acceptance.check import Acceptance, Tell, check_host, expected_of
from workers.acceptance.gate import figures_of
from workers.catalog import load_catalog
from workers.machine import find_gpus
from workers.plan import host_kind_of

app = typer.Typer(help="This machine as a GPU host.", no_args_is_help=True)

_CHECKOUT = Path(__file__).resolve().parents[2]


@app.command(epilog="Example: penstock host accept --host-kind gpu-b300x8-2304gb-spot --json")
def accept(
    host_kind: Annotated[
        str,
        typer.Option("--host-kind", help="What it should be, by the catalog; default: found by its GPUs."),
    ] = "",
    busy: Annotated[
        bool, typer.Option("--busy", help="Engines run: only read the GPUs' state, and load nothing.")
    ] = False,
    engine_env: Annotated[
        Path | None, typer.Option("--engine-env", help="The engine's environment; default: .engine.")
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir", help="Data directory of this host's agent: the result counts for its next start."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine's GPUs as an agent does before it serves. Takes a few minutes; nothing else may use them.

    Exits with 0 when the host is accepted or degraded, and with 1 when it is refused.
    """
    catalog, gpus = load_catalog(), asyncio.run(find_gpus())
    kind = host_kind or host_kind_of(catalog, gpus) or ""
    if host_kind and host_kind not in catalog.hosts:
        exit_with_error(f"there is no kind of host {host_kind!r}; known are: {', '.join(catalog.hosts)}")
    count = None if host_kind else len(gpus.ids)
    with _steps(quiet=as_json) as tell:
        found = asyncio.run(
            check_host(
                expected_of(catalog, kind, gpus=count),
                engine_env=engine_env or _CHECKOUT / ".engine",
                machine_boot=boot_id(),
                clock=SystemClock(),
                load=not busy,
                only=[int(index) for index in gpus.ids] or None,
                tell=tell,
            )
        )
    if data_dir is not None:
        record.save(data_dir, found)
    _show(found, kind, as_json)
    raise typer.Exit(1 if found.verdict == "refused" else 0)


@contextlib.contextmanager
def _steps(*, quiet: bool) -> Iterator[Tell]:
    """Shows the step that runs, on stderr."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda _: None
        return
    with console.status("starting") as status:
        yield status.update


def _show(found: Acceptance, kind: str, as_json: bool) -> None:
    if as_json:
        emit({"host_kind": kind, **msgspec.to_builtins(found)}, as_json)
        return
    if found.findings:
        emit(
            [
                {"severity": each.severity, "check": each.check, "finding": each.text}
                for each in found.findings
            ],
            as_json,
            title="Findings",
        )
    emit({"host_kind": kind or "not known", "verdict": found.verdict, **figures_of(found)}, as_json)
