"""Plots a run: a decision's cost over replicas, cached blocks and prompt length."""

from pathlib import Path
from typing import Any

SERIES = (
    ("by_replicas", "replicas", "replicas"),
    ("by_cached_blocks", "cached_blocks", "cached blocks, all replicas"),
    ("by_prompt", "longest", "blocks of the prompt"),
)


def plot(report: dict[str, Any], path: Path) -> None:
    """Write three panels to `path`: CPU microseconds per decision, mean, median and 99th percentile, and the
    mean with recording.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(14, 4.2), layout="constrained", sharey=True)
    top = max(
        max(point["decision"]["p99_us"], point["recorded"]["mean_us"])
        for series, _, _ in SERIES
        for point in report[series]
    )
    for axis, (series, key, label) in zip(axes, SERIES, strict=True):
        points = sorted(report[series], key=lambda point: point[key])
        across = [point[key] for point in points]
        for name, color in (("p99_us", "#cc6633"), ("mean_us", "#6699cc"), ("p50_us", "#999999")):
            values = [point["decision"][name] for point in points]
            axis.plot(across, values, "o-", color=color, label=name.removesuffix("_us"))
        recorded = [point["recorded"]["mean_us"] for point in points]
        axis.plot(across, recorded, ":", color="#336699", label="mean, recorded")
        for name, color in (("p99_us", "#cc6633"), ("mean_us", "#6699cc")):
            axis.axhline(report["targets"][name], color=color, linewidth=0.8, linestyle=":")
        axis.set(xscale="log", ylim=(0, 1.05 * top), xlabel=label)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("CPU microseconds per decision")
    axes[0].legend(frameon=False)
    stated = report["conditions"]
    figure.suptitle(
        f"One scheduling decision with {stated['queued']:,} requests queued; dotted: targets. "
        f"Commit {stated['commit']}, {stated['date']}, {stated['machine']}, load {stated['load_average']:.1f}",
        fontsize=10,
    )
    figure.savefig(path, dpi=110)
