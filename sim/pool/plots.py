"""Plots of a comparison: goodput, TTFT and hit rate over load, one panel per workload. Requires matplotlib."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from core.errors import InvalidRequest
from sim.pool.registry import OURS
from sim.pool.report import Standing

SHOWN = (OURS, "llmd_sticky", "llmd_flow", "llmd_latency", "dynamo_queue", "cache_aware", "vllm_router")
"""Policies shown in plots: few enough to distinguish; the tables show all."""
_STYLES: dict[str, tuple[str, float]] = {
    OURS: ("#0b6e4f", 2.4),
    "llmd_sticky": ("#d1495b", 1.4),
    "llmd_flow": ("#edae49", 1.4),
    "llmd_latency": ("#bc6c25", 1.4),
    "dynamo_queue": ("#30638e", 1.4),
    "cache_aware": ("#7a5195", 1.4),
    "vllm_router": ("#777777", 1.2),
}
_COLUMNS = 4
_LEGEND_INCHES = 0.55


def plot(rows: Sequence[Standing], path: Path, figure: str, label: str, *, log: bool = False) -> None:
    """Write one figure over load to `path` (.svg or .png), one panel per workload.

    Raises InvalidRequest when matplotlib is not installed or the suffix is neither.
    """
    if path.suffix not in (".svg", ".png"):
        raise InvalidRequest(f"a plot is written as .svg or .png, not {path.name!r}", param="plot")
    with style():
        _draw(rows, path, figure, label, log)


def _draw(rows: Sequence[Standing], path: Path, figure: str, label: str, log: bool) -> None:
    canvas, panels = _panels(sorted({each.workload for each in rows}))
    for workload, axes in panels.items():
        here = [each for each in rows if each.workload == workload]
        _panel(axes, here, figure, log)
        axes.set_title(workload, fontsize=9)
    first = next(iter(panels.values()))
    height = canvas.get_figheight()
    handles, names = first.get_legend_handles_labels()
    canvas.legend(
        handles, names, loc="lower center", ncols=min(_COLUMNS, len(names)), fontsize=8, frameon=False
    )
    canvas.supxlabel("load (1 = knee of llmd_sticky)", fontsize=9, y=_LEGEND_INCHES / height)
    canvas.supylabel(label, fontsize=9)
    canvas.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _panel(axes: Any, rows: Sequence[Standing], figure: str, log: bool) -> None:
    names = [name for name in SHOWN if any(each.policy == name for each in rows)]
    for name in names or sorted({each.policy for each in rows}):
        points = sorted(
            (each.load, each.figures[figure])
            for each in rows
            if each.policy == name and figure in each.figures
        )
        colour, width = _STYLES.get(name, ("#333333", 1.0))
        axes.plot(
            [point[0] for point in points],
            [point[1] for point in points],
            label=name,
            color=colour,
            linewidth=width,
            marker="o",
            markersize=3,
        )
    if figure == "goodput_rps":
        bound = sorted({(each.load, each.figures.get("bound_rps", 0.0)) for each in rows})
        axes.plot(
            [each[0] for each in bound], [each[1] for each in bound], "k:", linewidth=0.8, label="bound"
        )
    if log:
        axes.set_yscale("log")
    elif figure != "goodput_rps":
        axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.2)


def _panels(workloads: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    from matplotlib.figure import Figure

    columns = min(_COLUMNS, len(workloads))
    lines = -(-len(workloads) // columns)
    bottom = 1.2 * _LEGEND_INCHES / (2.5 * lines + _LEGEND_INCHES)
    canvas = Figure(figsize=(max(6.5, 3.1 * columns), 2.5 * lines + _LEGEND_INCHES), layout="constrained")
    canvas.get_layout_engine().set(rect=(0, bottom, 1, 1 - bottom))  # type: ignore[union-attr, call-arg]
    grid = canvas.subplots(lines, columns, squeeze=False)
    cells = [axes for line in grid for axes in line]
    for unused in cells[len(workloads) :]:
        unused.set_visible(False)
    return canvas, dict(zip(workloads, cells, strict=False))


def style() -> AbstractContextManager[None]:
    """Return a style with text as text and reproducible files: the same figures give the same file."""
    try:
        from matplotlib import rc_context
    except ImportError:
        raise InvalidRequest(
            "plots need matplotlib; it comes with the development requirements (make env)"
        ) from None
    return rc_context({"svg.hashsalt": "penstock", "svg.fonttype": "none"})
