"""`penstock sim fit`: the step model's figures from a sweep of an engine."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn
from rich.table import Table

from cli.blocking import check_output, run_blocking
from cli.context import AsJson
from core.errors import InvalidRequest
from sim.pool.validation.snippet import profile_snippet
from sim.pool.validation.sweep_fit import SweepFigures, fit_sweep
from sim.pool.validation.sweep_report import SweepError, check_sweep
from sim.pool.validation.sweeps import NEEDED, SHIPPED, Shape, Sweep, read_sweeps
from workers.catalog import Catalog, EngineProfile, load_catalog
from workers.wire import Capacity


def register(group: typer.Typer) -> None:
    """Add the command to `penstock sim`."""
    group.command(
        "fit", epilog="Example: penstock sim fit my-sweep.csv --profile minimax-m2.5:tp4 --out profile.toml"
    )(command)


def command(
    measurements: Annotated[
        Path | None,
        typer.Argument(
            metavar="CSV",
            help=f"Measurements, one run a row, with at least the columns {', '.join(NEEDED)}; lengths in "
            "tokens, means in seconds. Default: the sweeps that come along.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--sweep", help="Which sweep of the file; needed where it has several.")
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            "--profile",
            help="MODEL or MODEL:PROFILE of the catalog, for what is not fitted: gamma, attention, experts, cache, "
            "ranks. Default: the profile that names the sweep.",
        ),
    ] = None,
    kept_out: Annotated[
        str | None,
        typer.Option(
            "--hold-out", help="Lengths to keep out whole, such as 1024/8192; default: of three, the last."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Draws the lengths of the replayed requests.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the profile's lines (TOML) here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Fit prefill, step and request times to a whole sweep, and check them where they were not fitted.

    The benchmark's own loop is replayed on the simulated engine. Every second concurrency, and of three lengths
    one, are kept out.
    """

    def act() -> tuple[Sweep, SweepFigures, SweepError]:
        if out is not None:
            check_output(out)
        path = measurements or SHIPPED
        sweep = _chosen(path, read_sweeps(path), name)
        profile = _profile(load_catalog(), sweep, like)
        fixed, shape = _fixed(sweep, profile), _shape(kept_out)
        figures = _fitted(sweep, fixed, shape, seed)
        checked = check_sweep(
            sweep, figures.apply(fixed), block_size=profile.block_size, held_out_shape=shape, seed=seed
        )
        return sweep, figures, checked

    sweep, figures, checked = run_blocking(act)
    snippet = profile_snippet(sweep, figures, datetime.now(UTC).date())
    if out is not None:
        out.write_text(snippet, encoding="utf-8")
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(_as_json(figures, checked, snippet))).decode())
        return
    console = Console()
    console.print(point_table(checked))
    console.print(summary_line(checked))
    console.print(
        snippet if out is None else f"written to {out}", markup=False, highlight=False, soft_wrap=True
    )


def point_table(checked: SweepError) -> Table:
    """The points of a sweep: measured and replayed."""
    table = Table(title=f"{checked.title}: measured -> replayed", title_justify="left")
    for column in ("lengths", "users", "TTFT", "TPOT", ""):
        table.add_column(column, justify="left" if column in ("lengths", "") else "right")
    for point in checked.points:
        table.add_row(
            point.shape,
            str(point.concurrency),
            f"{point.ttft_s:.3f} -> {point.replayed_ttft_s:.3f} s {point.ttft_error:+.0%}",
            f"{1e3 * point.tpot_s:.2f} -> {1e3 * point.replayed_tpot_s:.2f} ms {point.tpot_error:+.0%}",
            point.use,
        )
    return table


def summary_line(checked: SweepError) -> str:
    """The medians of a sweep in words."""
    parts = []
    for use in ("fitted", "held out"):
        tpot, ttft = checked.tpot_median(use), checked.ttft_median(use)
        if tpot is not None:
            late = "" if ttft is None else f", TTFT {ttft:.1%} below 64 users"
            parts.append(f"{use}: TPOT {tpot:.1%}{late}")
    worst = checked.worst
    parts.append(
        f"worst TPOT {worst.tpot_error:+.0%} at {worst.shape}, {worst.concurrency} users: {checked.cause}"
    )
    return "median errors, " + "; ".join(parts)


def _chosen(path: Path, sweeps: dict[str, Sweep], name: str | None) -> Sweep:
    if name is None and len(sweeps) == 1:
        return next(iter(sweeps.values()))
    if name is None or name not in sweeps:
        asked = f"{path} has no sweep {name!r}" if name else f"{path} has several sweeps; choose with --sweep"
        raise InvalidRequest(f"{asked}; it has: {', '.join(sweeps)}", param="sweep")
    return sweeps[name]


def _profile(catalog: Catalog, sweep: Sweep, like: str | None) -> EngineProfile:
    if like is not None:
        model, _, profile = like.partition(":")
        return catalog.model(model).profile(profile)
    for known in catalog.models.values():
        for each in known.profiles.values():
            if each.sweep == sweep.name:
                return each
    raise InvalidRequest(
        f"no profile of the catalog names the sweep {sweep.name!r}; say with --profile what is not fitted",
        param="profile",
    )


def _fixed(sweep: Sweep, profile: EngineProfile) -> Capacity:
    """What is not fitted: the plain engine, or the drafting one where the sweep says that it drafts."""
    return profile.capacity if sweep.speculates else profile.plain


def _shape(words: str | None) -> Shape | None:
    if words is None:
        return None
    prompt, _, answer = words.partition("/")
    if not (prompt.isdigit() and answer.isdigit()):
        raise InvalidRequest(f"--hold-out is {words!r}, not lengths such as 1024/8192", param="hold_out")
    return Shape(int(prompt), int(answer))


def _fitted(sweep: Sweep, fixed: Capacity, shape: Shape | None, seed: int) -> SweepFigures:
    with Progress(
        *Progress.get_default_columns(), TimeElapsedColumn(), console=Console(stderr=True), transient=True
    ) as progress:
        task = progress.add_task(f"fitting {sweep.title}", total=None)
        trials, least = 0, float("inf")

        def tick(loss: float) -> None:
            nonlocal trials, least
            trials, least = trials + 1, min(least, loss)
            progress.update(task, description=f"fitting {sweep.title}: {trials} trials, error {least:.1%}")

        return fit_sweep(sweep, fixed, held_out_shape=shape, seed=seed, tick=tick)


def _as_json(figures: SweepFigures, checked: SweepError, snippet: str) -> dict[str, Any]:
    medians = {
        use: {"tpot": checked.tpot_median(use), "ttft_below_64_users": checked.ttft_median(use)}
        for use in ("fitted", "held out")
    }
    return {
        "figures": msgspec.to_builtins(figures),
        "median_errors": medians,
        "checked": msgspec.to_builtins(checked),
        "profile": snippet,
    }
