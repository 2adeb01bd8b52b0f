"""The plot of `penstock economics breakeven`: what a host earns and costs over its utilisation."""

from pathlib import Path

from admin.breakeven import BreakevenView
from core.errors import InvalidRequest


def plot_breakeven(view: BreakevenView, path: Path) -> None:
    """Draw a line per layout with a known cost: revenue less cost per hour, from an idle host to one at full load.

    The same figures give the same file. Raises InvalidRequest without matplotlib, for a suffix that it cannot write,
    and when no layout has a cost.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise InvalidRequest(
            "plots need matplotlib; it comes with the development requirements (make env)"
        ) from None
    rows = [row for row in view.layouts if row.host_usd_per_hour is not None]
    if not rows:
        raise InvalidRequest("no layout has a host price, so there is nothing to draw: give --host-price")
    with rc_context({"svg.hashsalt": "penstock", "svg.fonttype": "none"}):
        figure = Figure(figsize=(7.0, 4.2), layout="constrained")
        axes = figure.subplots()
        for row in rows:
            cost, revenue = float(row.host_usd_per_hour or 0), float(row.revenue_usd_per_hour)
            label = f"{row.profile}: {row.layout}, {row.host_kind} at ${row.host_usd_per_hour}"
            (line,) = axes.plot([0, 100], [-cost, revenue - cost], label=label)
            if 0 < cost <= revenue:
                axes.plot([100 * cost / revenue], [0], "o", color=line.get_color())
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_xlim(0, 100)
        axes.set_xlabel("utilisation, % of full load within the targets")
        axes.set_ylabel("revenue less the host's price, $ per hour")
        mix = view.mix
        axes.set_title(
            f"{view.model} ({view.tier}): {mix.input_tokens:,} tokens in, {mix.cached_input_tokens:,} of them cached, "
            f"{mix.output_tokens:,} out",
            fontsize=9,
        )
        axes.legend(fontsize=7)
        axes.grid(alpha=0.2)
        try:
            figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        except ValueError:
            raise InvalidRequest(f"{path}: a plot is a .svg or .png file", param="plot") from None
