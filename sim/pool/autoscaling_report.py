"""Presents the comparison of scaling policies as table rows and as a plot."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sim.pool.autoscaling import Outcome
from sim.pool.stats import interval

COLOURS = {
    "penstock": "#0b6e4f",
    "wva": "#c05746",
    "hpa": "#d9a441",
    "static": "#7d8597",
    "bound": "#3d5a80",
}


def rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return one row per policy: means over days with half-widths of 95 % confidence intervals.

    GPU hours are compared day by day: what Penstock saves against each policy, and what each policy saves
    against the static peak.
    """
    by_name = {row.policy: row for row in outcomes}
    mine, static = by_name.get("penstock"), by_name.get("static")
    found = []
    for outcome in outcomes:
        row: dict[str, Any] = {"policy": outcome.policy, "workload": outcome.workload, "knob": outcome.knob}
        for name, figure in (
            ("attainment", outcome.over_days(lambda day: day.worst_attainment)),
            ("ttft_attainment", outcome.over_days(lambda day: day.ttft_attainment)),
            ("tpot_attainment", outcome.over_days(lambda day: day.tpot_attainment)),
            ("gpu_hours", outcome.over_days(lambda day: day.gpu_s / 3600.0)),
            ("ttft_p99_s", outcome.over_days(lambda day: day.ttft_p99_s)),
            ("tpot_p99_s", outcome.over_days(lambda day: day.tpot_p99_s)),
            ("hit_rate", outcome.over_days(lambda day: day.hit_rate)),
            ("scale_events", outcome.over_days(lambda day: float(day.scale_ups + day.scale_downs))),
        ):
            row[name], row[f"{name}_ci"] = round(figure.mean, 5), _finite(figure.half)
        row["days"] = len(outcome.days)
        if mine is not None and mine is not outcome:
            row["ours_saves"], row["ours_saves_ci"] = _saved(mine, outcome)
        if static is not None and static is not outcome:
            row["saves_static"], row["saves_static_ci"] = _saved(outcome, static)
        found.append(row)
    return found


def _saved(one: Outcome, other: Outcome) -> tuple[float, float | None]:
    """Return the share of the GPU hours of `other` that `one` saves, day by day, with its interval's half-width."""
    shares = [1.0 - row.gpu_s / against.gpu_s for row, against in zip(one.days, other.days, strict=True)]
    saved = interval(shares)
    return round(saved.mean, 4), _finite(saved.half)


def _finite(half: float) -> float | None:
    return round(half, 5) if half < float("inf") else None


def plot(groups: Sequence[Sequence[Outcome]], path: Path) -> None:
    """Plot the replicas that hold GPUs over the first day, one panel per workload; the suffix of `path` sets
    the format.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "penstock"
    figure, axes = plt.subplots(len(groups), 1, figsize=(9, 2.6 * len(groups)), sharex=True, squeeze=False)
    for axis, outcomes in zip(axes[:, 0], groups, strict=True):
        for outcome in outcomes:
            line = outcome.days[0].awake
            end = line[-1][0] or 1.0
            hours = sum(day.gpu_s for day in outcome.days) / len(outcome.days) / 3600.0
            kept = 100 * sum(day.worst_attainment for day in outcome.days) / len(outcome.days)
            axis.step(
                [24.0 * at / end for at, _ in line],
                [count for _, count in line],
                where="post",
                color=COLOURS.get(outcome.policy, "black"),
                linewidth=2.0 if outcome.policy == "penstock" else 1.2,
                linestyle="--" if outcome.policy == "bound" else "-",
                label=f"{outcome.policy}: {hours:.0f} GPU-h, {kept:.1f} % kept",
            )
        axis.set_ylabel(f"{outcomes[0].workload}\nreplicas")
        axis.set_ylim(bottom=0)
        axis.legend(fontsize=7, loc="upper left", frameon=False)
    axes[-1, 0].set_xlabel("hour of the day")
    axes[-1, 0].set_xlim(0, 24)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
