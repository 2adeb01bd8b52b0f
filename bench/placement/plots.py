"""Plots of the comparison and the ablation: gains with their intervals, one line per point or mechanism."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.placement.ablation import AblationRow
from bench.placement.studies import Study
from sim.pool.blocks import Bounds
from sim.pool.plots import style
from sim.pool.report import Standing

COLOURS = {"above": "#0b6e4f", "below": "#d1495b", "same": "#777777"}
"""By verdict of an interval in which more is better."""
_LINE_INCHES = 0.27
_POINT_HEIGHT = 0.12


def draw_ablation(rows: Sequence[AblationRow], path: Path) -> None:
    """Plot what each mechanism gains in goodput over all points, with its interval, and at each point (small)."""
    with style():
        canvas = _canvas(len(rows))
        axes = canvas.subplots(1, 1)
        for place, row in enumerate(rows):
            for gain in row.gains():
                axes.plot(100 * gain.value, place + _POINT_HEIGHT, ".", color="#bbbbbb", markersize=4)
            _interval(axes, place, row.over_all, 100.0, 0.0)
        axes.set_xscale("symlog", linthresh=5.0)
        _lines(axes, [row.name for row in rows], 0.0)
        axes.set_xlabel("goodput gained by having it, %", fontsize=9)
        canvas.savefig(path, metadata={"Date": None})


def draw_comparison(points: Sequence[tuple[Study, Standing]], path: Path) -> None:
    """Plot our lead in goodput over the best published policy at each point, and our TTFT p50 and p90 over its."""
    with style():
        canvas = _canvas(len(points))
        lead, p50, p90 = canvas.subplots(1, 3, sharey=True)
        for place, (_, best) in enumerate(points):
            for axes, figure, factor, neutral in (
                (lead, best.lead, 100.0, 0.0),
                (p50, best.ttft_p50, 1.0, 1.0),
                (p90, best.ttft_p90, 1.0, 1.0),
            ):
                if figure is not None:
                    _interval(axes, place, figure, factor, neutral, less_is_better=axes is not lead)
        names = [f"{study.title}, {best.load:g} {best.shed}" for study, best in points]
        for axes, title, neutral in (
            (lead, "lead in goodput, %", 0.0),
            (p50, "TTFT p50, ours / theirs", 1.0),
            (p90, "TTFT p90, ours / theirs", 1.0),
        ):
            _lines(axes, names, neutral)
            axes.set_xlabel(title, fontsize=9)
        for axes in (p50, p90):
            axes.set_xscale("log")
            axes.minorticks_off()
        canvas.savefig(path, metadata={"Date": None})


def _canvas(lines: int) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(9.0, 0.9 + _LINE_INCHES * lines), layout="constrained")


def _interval(
    axes: Any, place: int, figure: Bounds, factor: float, neutral: float, *, less_is_better: bool = False
) -> None:
    verdict = figure.verdict(neutral)
    if less_is_better:
        verdict = {"above": "below", "below": "above", "same": "same"}[verdict]
    colour = COLOURS[verdict]
    axes.plot([factor * figure.low, factor * figure.high], [place, place], color=colour, linewidth=1.6)
    axes.plot(factor * figure.value, place, "o", color=colour, markersize=4)


def _lines(axes: Any, names: Sequence[str], neutral: float) -> None:
    axes.axvline(neutral, color="black", linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(alpha=0.2)
