"""Plots sweeps: throughput per GPU against interactivity, measured and replayed, one panel per model and machine."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from core.errors import InvalidRequest
from sim.pool.plots import style
from sim.pool.validation.sweep_report import PointError, SweepError

_COLOURS = ("#0b6e4f", "#d1495b", "#30638e", "#edae49")
_COLUMNS = 3
_PANEL_INCHES = (3.3, 2.7)


def plot_sweeps(errors: Sequence[SweepError], path: Path) -> None:
    """Write the panels to `path` (.svg or .png). Raises InvalidRequest for another suffix or without matplotlib."""
    if path.suffix not in (".svg", ".png"):
        raise InvalidRequest(f"a plot is written as .svg or .png, not {path.name!r}", param="plot")
    with style():
        from matplotlib.figure import Figure

        columns = min(_COLUMNS, len(errors))
        lines = -(-len(errors) // columns)
        width, height = _PANEL_INCHES
        canvas = Figure(figsize=(width * columns, height * lines), layout="constrained")
        cells = [axes for line in canvas.subplots(lines, columns, squeeze=False) for axes in line]
        for axes, checked in zip(cells, errors, strict=False):
            _panel(axes, checked)
        for unused in cells[len(errors) :]:
            unused.set_visible(False)
        canvas.supxlabel("interactivity: tokens per second and user (1 / TPOT)", fontsize=9)
        canvas.supylabel("output tokens per second and GPU", fontsize=9)
        canvas.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def throughput_per_gpu(checked: SweepError, point: PointError, ttft_s: float, tpot_s: float) -> float:
    """Output tokens per second and GPU of a closed loop: users * answer / (TTFT + (answer - 1) * TPOT) / GPUs.

    Sweeps seldom state their throughput; this follows from the times that they state, in a loop without pauses.
    """
    answer = int(point.shape.partition("/")[2])
    return point.concurrency * answer / (ttft_s + (answer - 1) * tpot_s) / checked.gpus


def _panel(axes: Any, checked: SweepError) -> None:
    shapes = list(dict.fromkeys(point.shape for point in checked.points))
    for shape, colour in zip(shapes, _COLOURS, strict=False):
        points = [each for each in checked.points if each.shape == shape]
        axes.plot(
            [1.0 / each.replayed_tpot_s for each in points],
            [
                throughput_per_gpu(checked, each, each.replayed_ttft_s, each.replayed_tpot_s)
                for each in points
            ],
            color=colour,
            linewidth=1.2,
            label=f"{shape} replayed",
        )
        for use, fill in (("fitted", colour), ("held out", "white"), ("full cache", "#cccccc")):
            chosen = [each for each in points if each.use == use]
            axes.plot(
                [1.0 / each.tpot_s for each in chosen],
                [throughput_per_gpu(checked, each, each.ttft_s, each.tpot_s) for each in chosen],
                linestyle="none",
                marker="o",
                markersize=4,
                color=colour,
                markerfacecolor=fill,
            )
    axes.set_title(checked.title.replace(", ", "\n", 1), fontsize=7.5)
    axes.legend(fontsize=6, frameon=False)
    axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.2)
