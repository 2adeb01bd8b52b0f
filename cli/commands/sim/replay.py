"""`penstock sim replay`: latency and cost of recorded traffic on other pools."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from cli.blocking import run_blocking
from cli.context import AsJson, DataDir, open_db, run
from core.errors import InvalidRequest, NotFound
from scheduler.request_trace_store import read_trace, traced_models
from sim.pool.pool import unvalidated_line
from sim.pool.replay import MAX_REQUESTS, Figures, Plan, ReplayResult, export, measured, replay, rows_of
from sim.pool.settings import Progress as Standing
from sim.pool.workloads.mooncake import Row, read_rows
from workers.catalog import Catalog, load_catalog

_AGE = re.compile(r"(\d{1,5})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
MAX_POOLS = 20


def register(group: typer.Typer) -> None:
    """Add the command to `penstock sim`."""
    group.command(
        "replay",
        epilog="Example: penstock sim replay --since 24h --model llama-3.3-70b --hosts 1,2,4 --kind gpu-h100x8-640gb",
    )(command)


def command(
    file: Annotated[
        Path | None,
        typer.Argument(help="A file that --export wrote, or a Mooncake trace, instead of the database."),
    ] = None,
    since: Annotated[
        str, typer.Option(help="Start: an instant such as 2026-11-22T08:30 (UTC), or an age: 90m, 6h, 2d.")
    ] = "1h",
    until: Annotated[str, typer.Option(help="End, written likewise; excluded.")] = "0s",
    model: Annotated[str | None, typer.Option(help="Only requests for this model.")] = None,
    hosts: Annotated[str, typer.Option(help="Hosts of each model; several pools with commas: 1,2,4.")] = "1",
    kind: Annotated[
        str | None, typer.Option(help="Kind of host; default: that of each model's first profile.")
    ] = None,
    policy: Annotated[str, typer.Option(help="Routing policy; `penstock` is ours.")] = "penstock",
    prefix: Annotated[
        str, typer.Option(help="What ours knows of prefix caches: mirrored or exact.")
    ] = "mirrored",
    scale: Annotated[
        float, typer.Option(min=0.01, max=100.0, help="Traffic times this: the same requests in less time.")
    ] = 1.0,
    warmup: Annotated[
        float, typer.Option(min=0.0, help="Seconds at the start that only fill caches (at most half).")
    ] = 0.0,
    deadline: Annotated[
        float, typer.Option(min=0.1, max=600.0, help="Seconds that a request may wait in the queue.")
    ] = 30.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same answer.")] = 1,
    export_to: Annotated[
        Path | None,
        typer.Option("--export", help="Write what was recorded to this file (JSON lines, no text) and stop."),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Replay recorded requests against other pools: TTFT, refusals, and cost per million tokens.

    A running Penstock records every request (time, tenant, token counts, salted hashes; no text).
    """

    def act(rows: Sequence[Row], sizes: Sequence[int]) -> list[ReplayResult]:
        if export_to is not None:
            export(rows, export_to)
            return []
        plans = [
            Plan(size, kind, policy, prefix, scale, deadline_s=deadline, warmup_s=warmup, seed=seed)
            for size in sizes
        ]
        return _answers(rows, load_catalog(), plans)

    sizes = run_blocking(lambda: _sizes(hosts))
    rows = (
        run_blocking(lambda: _of_file(file, model))
        if file is not None
        else run(lambda: _recorded(since, until, model, data_dir))
    )
    answers = run_blocking(lambda: act(rows, sizes))
    real = measured(rows)
    if export_to is not None:
        print(f"{len(rows):,} requests written to {export_to}")
    elif as_json:
        print(msgspec.json.format(msgspec.json.encode(_as_json(rows, real, answers))).decode())
    else:
        _show(rows, real, answers)


async def _recorded(since: str, until: str, model: str | None, data_dir: Path | None) -> list[Row]:
    """Recorded rows from the database. Raises NotFound when there are none."""
    now = datetime.now(UTC)
    start, end = _instant(since, now, "--since"), _instant(until, now, "--until")
    if start >= end:
        raise InvalidRequest(
            f"--since ({start:%Y-%m-%d %H:%M:%S}) must be before --until ({end:%Y-%m-%d %H:%M:%S})"
        )
    async with open_db(data_dir) as database, database.read() as connection:
        requests = []
        async for pair in read_trace(connection, start, end, model):
            requests.append(pair)
            if len(requests) > 2 * MAX_REQUESTS:
                raise InvalidRequest(
                    f"more than {MAX_REQUESTS:,} requests were recorded; choose a shorter period"
                )
        rows = rows_of(requests)
        if rows:
            return rows
        others = await traced_models(connection, start, end)
    period = f"from {start:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S} UTC"
    if model is not None and others:
        raise NotFound(
            f"no request for {model!r} was recorded {period}; there are some for: {', '.join(sorted(others))}"
        )
    raise NotFound(
        f"no request was recorded {period}; PENSTOCK_RECORD_REQUEST_TRACES and "
        "PENSTOCK_REQUEST_TRACES_KEEP_DAYS say what is kept"
    )


def _of_file(path: Path, model: str | None) -> list[Row]:
    rows = read_rows(path)
    kept = [row for row in rows if model is None or row.model in ("", model)]
    for row in kept:
        if not row.model:
            if model is None:
                raise InvalidRequest(f"{path.name} does not say which model it is about; give --model")
            row.model = model
    if not kept:
        others = ", ".join(sorted({row.model for row in rows}))
        raise NotFound(f"{path.name} has no request for {model!r}; it has some for: {others}")
    return kept


def _sizes(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= 10_000 for part in parts) or len(parts) > MAX_POOLS:
        raise InvalidRequest(
            f"--hosts is {text!r}, not whole numbers such as 1,2,4 (at most {MAX_POOLS})", param="hosts"
        )
    return sorted({int(part) for part in parts})


def _instant(text: str, now: datetime, option: str) -> datetime:
    if age := _AGE.fullmatch(text.strip()):
        return now - timedelta(**{_UNITS[age[2]]: int(age[1])})
    try:
        instant = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidRequest(
            f"{option} is {text!r}, neither an instant such as 2026-11-22T08:30 nor an age such as 6h"
        ) from None
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def _answers(rows: Sequence[Row], catalog: Catalog, plans: Sequence[Plan]) -> list[ReplayResult]:
    answers = []
    for plan in plans:
        seconds = _span_s(rows) / plan.scale
        with _progress(f"{plan.hosts} hosts", seconds) as on_progress:
            answers.append(replay(rows, catalog, plan, on_progress))
    return answers


@contextmanager
def _progress(what: str, seconds: float) -> Iterator[Any]:
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(what, total=max(seconds, 1e-9), note="")

        def on_progress(at: Standing) -> None:
            note = f"{at.arrived:,} requests, {at.in_flight} in flight, {at.waiting} waiting"
            bar.update(task, completed=min(at.now, seconds), note=note)

        yield on_progress


def _as_json(rows: Sequence[Row], real: Figures | None, answers: Sequence[ReplayResult]) -> dict[str, Any]:
    return {
        "requests": len(rows),
        "seconds": _span_s(rows),
        "models": sorted({row.model for row in rows}),
        "measured": real,
        "pools": [answer.as_json() for answer in answers],
    }


def _show(rows: Sequence[Row], real: Figures | None, answers: Sequence[ReplayResult]) -> None:
    models = ", ".join(sorted({row.model for row in rows}))
    title = f"{len(rows):,} recorded requests of {_span_s(rows):,.0f} s: {escape(models)}"
    table = Table(title=title, title_justify="left")
    table.add_column("")
    columns = [("measured", real)] if real else []
    columns += [
        (f"{answer.hosts} {'host' if answer.hosts == 1 else 'hosts'}", answer.figures) for answer in answers
    ]
    for name, _ in columns:
        table.add_column(name, justify="right")
    for label, cell in _LINES:
        table.add_row(label, *(cell(figures) for _, figures in columns))
    console = Console() if Console().is_terminal else Console(width=160)
    console.print(table)
    for answer in answers[:1]:
        kinds = ", ".join(f"{model} on {kind}" for model, kind in answer.host_kinds.items())
        console.print(f"Simulated with caches empty at the start: {kinds}.", highlight=False)
        for line in unvalidated_line(answer.unvalidated):
            console.print(line, highlight=False)
    if real:
        console.print(
            "Measured leaves out requests that were placed while the scheduler was away.", highlight=False
        )


def _span_s(rows: Sequence[Row]) -> float:
    return (rows[-1].timestamp - rows[0].timestamp) / 1000


def _seconds(value: float | None, scale: float = 1.0, unit: str = "s") -> str:
    return "-" if value is None else f"{value * scale:.3g} {unit}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _dollars(value: str | None) -> str:
    return "-" if value is None else f"{Decimal(value):.4f}"


_LINES: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("requests", lambda f: f"{f.requests:,}"),
    ("refused", lambda f: f"{f.refused:,} ({f.refused / max(1, f.requests):.1%})"),
    ("TTFT p50", lambda f: _seconds(f.ttft_p50_s)),
    ("TTFT p95", lambda f: _seconds(f.ttft_p95_s)),
    ("TTFT p99", lambda f: _seconds(f.ttft_p99_s)),
    ("time per token p50", lambda f: _seconds(f.tpot_p50_s, 1000, "ms")),
    ("time per token p95", lambda f: _seconds(f.tpot_p95_s, 1000, "ms")),
    ("prompt tokens from cache", lambda f: _share(f.hit_rate)),
    ("GPU-hours", lambda f: "-" if f.gpu_hours is None else f"{f.gpu_hours:.2f}"),
    ("USD per million tokens", lambda f: _dollars(f.usd_per_mtok)),
)
