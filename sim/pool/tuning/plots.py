"""Plots of the studies: knees as a share of an arrangement without the option, by profile and workload."""

from collections.abc import Sequence
from pathlib import Path

from core.errors import InvalidRequest
from sim.pool.plots import style

_COLOURS = ("#999999", "#0b6e4f", "#30638e", "#d1495b")


def plot_shares(bars: Sequence[tuple[str, Sequence[tuple[str, float]]]], path: Path, label: str) -> None:
    """Draw groups of bars to `path` (.svg or .png): each group's name, and its bars by name with their heights.

    Raises InvalidRequest for another suffix or without matplotlib.
    """
    if path.suffix not in (".svg", ".png"):
        raise InvalidRequest(f"a plot is written as .svg or .png, not {path.name!r}", param="plot")
    with style():
        from matplotlib.figure import Figure

        canvas = Figure(figsize=(max(5.0, 1.15 * len(bars)), 3.4), layout="constrained")
        axes = canvas.subplots()
        names = list(dict.fromkeys(name for _, group in bars for name, _ in group))
        width = 0.8 / len(names)
        for number, name in enumerate(names):
            points = [
                (place + (number - (len(names) - 1) / 2) * width, height)
                for place, (_, group) in enumerate(bars)
                for own, height in group
                if own == name
            ]
            axes.bar(
                [x for x, _ in points],
                [height for _, height in points],
                width,
                color=_COLOURS[number % len(_COLOURS)],
                label=name,
            )
        axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
        axes.set_xticks(range(len(bars)), [name for name, _ in bars], fontsize=6.5)
        axes.set_ylabel(label, fontsize=8)
        axes.tick_params(axis="y", labelsize=7)
        axes.legend(fontsize=7, frameon=False, ncols=len(names), loc="upper right")
        axes.set_ylim(0, 1.18 * max(height for _, group in bars for _, height in group))
        canvas.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
