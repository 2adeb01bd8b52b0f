"""`penstock economics breakeven`: at which utilisation a host is paid for, and which price and layout pay."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from admin.breakeven import BreakevenView, LayoutView, breakeven
from admin.breakeven_inputs import Choice
from cli.blocking import check_output
from cli.breakeven_plot import plot_breakeven
from cli.context import AsJson, DataDir, acting, emit, open_db, run
from workers.service_level import Tier

COLUMNS = ("profile", "layout", "host", "$/h", "requests/h", "earns $/h", "saturated $/h", "pays from", "cost $/M",
           "price that pays", "figures")  # fmt: skip


def register(group: typer.Typer) -> None:
    """Add the command to `penstock economics`."""
    group.command(
        "breakeven",
        epilog="Example: penstock economics breakeven --model deepseek-v3.2 --input-tokens 8000 --output-tokens 1000 "
        "--cached-share 0.5 --margin 0.2",
    )(breakeven_command)


def breakeven_command(
    model: Annotated[str, typer.Option(help="A model of the catalog.")],
    tier: Annotated[Tier, typer.Option(help="Its targets and its list price.")] = "standard",
    profile: Annotated[str | None, typer.Option(help="Only this engine profile; default: all.")] = None,
    host_kind: Annotated[
        str | None, typer.Option(help="Another kind of host with the same GPUs, such as a spot one.")
    ] = None,
    host_price: Annotated[
        str | None, typer.Option(help="Dollars per hour of a host; default: the price in force.")
    ] = None,
    input_price: Annotated[
        str | None, typer.Option(help="Dollars per million input tokens; default: the list price in force.")
    ] = None,
    output_price: Annotated[str | None, typer.Option(help="Likewise for output tokens.")] = None,
    cached_price: Annotated[
        str | None, typer.Option(help="Likewise for cached input; as input when both others are given.")
    ] = None,
    cached_share: Annotated[
        str | None, typer.Option(help="Share of the input that is cached, 0 to 1; default: as used.")
    ] = None,
    input_tokens: Annotated[
        int | None, typer.Option(help="Tokens of a prompt; default: the mean of the last 30 days.")
    ] = None,
    output_tokens: Annotated[int | None, typer.Option(help="Tokens of an answer; likewise.")] = None,
    margin: Annotated[str, typer.Option(help="Share of revenue that is to be left, such as 0.2.")] = "0",
    utilisation: Annotated[
        str, typer.Option(help="Share of full load, over day and night, for which a price is proposed.")
    ] = "1",
    hosts: Annotated[int, typer.Option(help="Hosts of the pool, which share the waiting prompts.")] = 1,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw earnings over utilisation to this .svg or .png file.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Say at which utilisation a host is paid for, and which price and layout pay.

    Full load is the most that the fitted step model allows within the targets of the tier.
    """
    choice = Choice(
        model=model,
        tier=tier,
        profile=profile,
        host_kind=host_kind,
        host_price=host_price,
        input_price=input_price,
        cached_price=cached_price,
        output_price=output_price,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_share=cached_share,
        margin=margin,
        utilisation=utilisation,
        hosts=hosts,
    )

    async def act() -> Any:
        check_output(plot)
        async with open_db(data_dir) as database:
            who = await acting(database, data_dir)
            view = await breakeven(database, who, choice=choice)
        if plot is not None:
            plot_breakeven(view, plot)
        return view

    view = run(act)
    if as_json:
        emit(view, as_json)
    else:
        _print(view)


def _print(view: BreakevenView) -> None:
    """Print the table, what it assumes, and what it proposes."""
    mix = view.mix
    table = Table(title=f"Break-even of {view.model} ({view.tier})", title_justify="left")
    for name in COLUMNS:
        table.add_column(
            name, justify="left" if name in ("profile", "layout", "host", "figures") else "right"
        )
    for row in view.layouts:
        table.add_row(*_cells(row))
    console = Console(width=200)
    console.print(table)
    lines = [
        f"request: {mix.input_tokens:,} tokens in, {mix.cached_input_tokens:,} of them cached, {mix.output_tokens:,} "
        f"out ({mix.source})",
        "price: none"
        if view.price is None
        else f"price: ${view.price.input} input, ${view.price.cached_input} cached, ${view.price.output} output per "
        f"million tokens ({view.price_source})",
        f"a price that pays: the lowest at {view.utilisation} of full load with a margin of {view.margin}, "
        "input / cached input / output",
    ]
    best = next((row for row in view.layouts if row.profile == view.best), None)
    if best is not None:
        lines.append(f"cheapest tokens: {best.profile}, {best.layout} on {best.host_kind}")
    if view.loss is not None:
        lines += [f"warning: this price is {view.loss.message}", f"mend it: {view.loss.command}"]
    for line in lines:
        console.print(line, highlight=False)


def _cells(row: LayoutView) -> tuple[str, ...]:
    price = row.price
    return (
        row.profile,
        row.layout,
        row.host_kind,
        row.host_usd_per_hour or "-",
        row.requests_per_hour,
        row.revenue_usd_per_hour,
        row.saturated_usd_per_hour,
        _utilisation(row),
        "-" if row.cost_usd_per_mtok is None else f"{float(row.cost_usd_per_mtok):.4f}",
        "-" if price is None else f"{price.input} / {price.cached_input} / {price.output}",
        row.basis,
    )


def _utilisation(row: LayoutView) -> str:
    if row.breakeven_utilisation is None:
        return "-" if row.host_usd_per_hour is None else "never"
    percent = 100 * float(row.breakeven_utilisation)
    return f"{percent:.1f} %" if percent <= 100 else f"never ({percent:.0f} %)"
