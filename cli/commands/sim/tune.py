"""`penstock sim tune`: studies that choose how the engines of a profile are started."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import Progress, TimeElapsedColumn
from rich.table import Table

from cli.blocking import check_output, run_blocking
from cli.commands.sim.played import played_line
from cli.context import AsJson
from sim.pool.pool import unvalidated, unvalidated_line
from sim.pool.tuning import chunk_page, ranks, ranks_page, split, split_page, tier_page, tiers
from sim.pool.tuning.chunks import CHUNK_S, SizeFigures, chosen, study
from sim.pool.tuning.plots import plot_shares
from workers.catalog import Catalog, CatalogModel, EngineProfile, HostKind, load_catalog

RowT_co = TypeVar("RowT_co", covariant=True)

app = typer.Typer(help="Choose engine options by simulation.", no_args_is_help=True)
Models = Annotated[
    list[str] | None,
    typer.Option("--model", help="MODEL or MODEL:PROFILE; several times. Default: all profiles with GPUs."),
]
Page = Annotated[Path | None, typer.Option("--markdown", help="Write the page here.")]
Plot = Annotated[Path | None, typer.Option("--plot", help="Draw the knees here, as .svg or .png.")]
TIERS_STUDIED = (
    "deepseek-v3.2:tp8", "deepseek-v3.2:tp8-h200-kv", "minimax-m2.5:tp4", "minimax-m2.5:tp4-h100-kv",
    "llama-3.3-70b:tp2-kv",
)  # fmt: skip
"""Profiles of the study of tiers by default: caches of all sizes, every model whose cache is plain, and the profiles
that come with a tier."""
SPLIT_STUDIED = ("deepseek-v3.2:tp8", "minimax-m2.5:tp4", "llama-3.3-70b:tp2")
"""Profiles of the study of the split by default: one of each of these models."""


def register(group: typer.Typer) -> None:
    """Add the commands to `penstock sim`."""
    group.add_typer(app, name="tune")


@app.command(epilog="Example: penstock sim tune chunks --model llama-3.3-70b:tp2")
def chunks(
    models: Models = None,
    chunk_ms: Annotated[
        float, typer.Option(min=0.0, help="Milliseconds of a chunk beside alpha and its tokens.")
    ] = 1e3 * CHUNK_S,
    page: Page = None,
    as_json: AsJson = False,
) -> None:
    """Choose the tokens of a step (--max-num-batched-tokens): throughput against pauses of running answers."""

    def act() -> list[SizeFigures]:
        check_output(page)
        picked = profiles(load_catalog(), models)
        with progress() as tick:
            return [row for pair in picked for row in study(*pair, chunk_s=chunk_ms / 1e3, tick=tick)]

    rows = run_blocking(act)
    if page is not None:
        page.write_text(
            chunk_page.markdown(rows, played=played(row.profile for row in rows)), encoding="utf-8"
        )
        typer.echo(str(page))
    elif as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(_as_json(rows))).decode())
    else:
        Console().print(_table(rows))
        typer.echo(played(row.profile for row in rows))


@app.command("tiers", epilog="Example: penstock sim tune tiers --model llama-3.3-70b:tp2")
def tier_command(
    models: Models = None, page: Page = None, plot: Plot = None, as_json: AsJson = False
) -> None:
    """Say where a KV cache in host memory pays: one engine with and without it."""

    def act() -> list[tiers.TierFigures]:
        rows = _studied(tiers.study, models or TIERS_STUDIED, page, plot)
        if plot is not None:
            bars = [
                (_label(bare.profile, bare.workload), [("with host memory", tier.knee_rps / bare.knee_rps)])
                for bare, tier in tier_page.pairs(rows)
            ]
            plot_shares(bars, plot, "knee over that without")
        return rows

    rows = run_blocking(act)
    conditions = played(row.profile for row in rows)
    _write(rows, lambda drawn: tier_page.markdown(rows, played=conditions, plot=drawn), page, plot, as_json)


@app.command("split", epilog="Example: penstock sim tune split --model llama-3.3-70b:tp2")
def split_command(
    models: Models = None, page: Page = None, plot: Plot = None, as_json: AsJson = False
) -> None:
    """Say where prefill apart from decode pays: engines divided in two, and undivided."""

    def act() -> list[split.SplitFigures]:
        rows = _studied(split.study, models or SPLIT_STUDIED, page, plot)
        if plot is not None:
            bars = [
                (
                    _label(profile, workload),
                    [
                        (f"{row.prefill} prefill + {row.decode}", row.knee_rps / found[0].knee_rps)
                        for row in found[1:]
                    ],
                )
                for profile, workload, found in split_page.groups(rows)
            ]
            plot_shares(bars, plot, "knee over that of undivided engines")
        return rows

    rows = run_blocking(act)
    conditions = played(row.profile for row in rows)
    _write(rows, lambda drawn: split_page.markdown(rows, played=conditions, plot=drawn), page, plot, as_json)


@app.command("ranks", epilog="Example: penstock sim tune ranks --hosts 1 --workload mixed")
def ranks_command(
    hosts: Annotated[int, typer.Option(min=1, help="Hosts of 8 GPUs.")] = 1,
    workloads: Annotated[
        list[str] | None, typer.Option("--workload", help="A workload; several times. Default: both.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    page: Page = None,
    as_json: AsJson = False,
) -> None:
    """Compare attention data parallelism with TP8, and ranks as targets with the engine's own choice of a rank."""

    def act() -> list[ranks.RankFigures]:
        check_output(page)
        with progress() as tick:
            return ranks.study(hosts, workloads=workloads or tuple(ranks.RATES), workers=workers, tick=tick)

    rows = run_blocking(act)
    _write(rows, lambda _: ranks_page.markdown(rows, hosts=hosts, played=played()), page, None, as_json)


class _Study(Protocol[RowT_co]):
    def __call__(
        self, model: CatalogModel, profile: EngineProfile, host: HostKind, /, *, tick: Callable[[str], None]
    ) -> Sequence[RowT_co]:
        """Return the figures of one profile."""


def _studied(
    study: _Study[RowT_co], names: Sequence[str], page: Path | None, plot: Path | None
) -> list[RowT_co]:
    """Return the figures of the named profiles, after a check that page and plot can be written."""
    check_output(page)
    check_output(plot)
    catalog = load_catalog()
    with progress() as tick:
        return [
            row
            for model, profile in profiles(catalog, names)
            for row in study(model, profile, catalog.hosts[profile.host_kind], tick=tick)
        ]


def _write(
    rows: Sequence[msgspec.Struct],
    render: Callable[[str | None], str],
    page: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Write the page, or print it or the figures."""
    drawn = None if plot is None or page is None else os.path.relpath(plot, page.parent)
    if page is not None:
        page.write_text(render(drawn), encoding="utf-8")
        typer.echo(str(page))
    elif as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(rows)).decode())
    else:
        Console().print(Markdown(render(None)))


def _label(profile: str, workload: str) -> str:
    return "\n".join([*profile.split(":"), workload.split("-")[0]])


def profiles(catalog: Catalog, names: Sequence[str] | None) -> list[tuple[CatalogModel, EngineProfile]]:
    """Return the named profiles (MODEL = all of its own), or all that have GPUs. Raises InvalidRequest."""
    if not names:
        everything = [(model, each) for model in catalog.models.values() for each in model.profiles.values()]
        return [(model, profile) for model, profile in everything if profile.gpus]
    found = []
    for name in names:
        head, _, tail = name.partition(":")
        model = catalog.model(head)
        found += [(model, each) for each in ([model.profile(tail)] if tail else model.profiles.values())]
    return found


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Show what is played next; yields the function that changes it."""
    with Progress(
        *Progress.get_default_columns(), TimeElapsedColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task("", total=None)
        yield lambda what: bar.update(task, description=what)


def played(names: Iterable[str] = ()) -> str:
    """Return when a page was made, with which version, and which of its profiles have unvalidated figures."""
    return "\n".join([played_line(), *unvalidated_line(unvalidated(names, load_catalog()))])


def _as_json(rows: Sequence[SizeFigures]) -> dict[str, Any]:
    names = dict.fromkeys(row.profile for row in rows)
    return {
        "chosen": {name: chosen([row for row in rows if row.profile == name]) for name in names},
        "figures": [msgspec.to_builtins(row) for row in rows],
    }


def _table(rows: Sequence[SizeFigures]) -> Table:
    table = Table(title="Tokens of a step", title_justify="left")
    for name in ("profile", "workload", "tokens", "knee", "pause p90", "TTFT p90", "TPOT p50", ""):
        table.add_column(name, justify="left" if name in ("profile", "workload", "") else "right")
    for name in dict.fromkeys(row.profile for row in rows):
        own = [row for row in rows if row.profile == name]
        best = chosen(own)
        for row in own:
            table.add_row(
                row.profile,
                row.workload,
                f"{row.size:,}",
                f"{row.knee_rps:.3g}/s",
                f"{1e3 * row.pause_p90_s:.0f} ms",
                f"{row.ttft_p90_s:.2f} s",
                f"{1e3 * row.tpot_p50_s:.1f} ms",
                "chosen" if row.size == best else "",
            )
    return table
