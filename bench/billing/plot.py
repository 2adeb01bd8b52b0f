"""Plots a run: seconds and memory of a month's report by number of rows, and settlement with its target."""

from pathlib import Path
from typing import Any

_STYLE = {
    "rollup": ("from rollups", "#cc6633"),
    "gpu": ("from rollups, with GPU cost", "#aa4499"),
    "raw_parquet": ("rows in Parquet (DuckDB)", "#6699cc"),
    "raw_postgres": ("rows in PostgreSQL", "#336644"),
}


def plot(report: dict[str, Any], path: Path) -> None:
    """Write three panels to `path`."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (time_axis, memory_axis, settle_axis) = plt.subplots(
        1, 3, figsize=(15, 4.4), layout="constrained"
    )
    rows = [one["rows"] for one in report["growth"]]
    for kind, (label, color) in _STYLE.items():
        time_axis.plot(
            rows, [one[kind]["seconds"] for one in report["growth"]], "o-", label=label, color=color
        )
        memory_axis.plot(
            rows, [one[kind]["peak_mb"] for one in report["growth"]], "o-", label=label, color=color
        )
    for target in (2, 20):
        time_axis.axhline(target, color="black", linewidth=0.6, linestyle=":")
    time_axis.set(xscale="log", yscale="log", xlabel="usage rows in the month", title="Month report, seconds")
    memory_axis.set(
        xscale="log", ylim=(0, None), xlabel="usage rows in the month", title="Peak memory of the reader, MB"
    )
    time_axis.legend(fontsize=8)
    settlement = report["settlement"]
    names = ["saturated,\nsettled", "saturated,\nand sealed", "offered", "offered,\nsettled"]
    values = [
        settlement["saturated"]["settled_per_s"], settlement["saturated"]["settled_and_sealed_per_s"],
        settlement["steady"]["offered_per_s"], settlement["steady"]["settled_per_s"],
    ]  # fmt: skip
    bars = settle_axis.bar(names, values, color=["#cc6633", "#cc6633", "#999999", "#6699cc"])
    settle_axis.bar_label(bars, fmt="{:,.0f}")
    settle_axis.axhline(10_000, color="black", linewidth=0.6, linestyle=":")
    settle_axis.set_title(f"Settlement, rows/s ({settlement['bytes_per_row']:.0f} bytes a row)")
    for axis in (time_axis, memory_axis, settle_axis):
        axis.spines[["top", "right"]].set_visible(False)
    stated = report["conditions"]
    figure.suptitle(f"Billing, commit {stated['commit']}, {stated['date']}, {stated['machine']}")
    figure.savefig(path, dpi=110)
