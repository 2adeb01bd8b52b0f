"""The comparison of scaling policies as rows, and as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scheduler.simulator.autoscaling import Outcome
from scheduler.simulator.stats import paired

COLOURS = {
    "penstock": "#0b6e4f",
    "reactive": "#6fb98f",
    "wva": "#c05746",
    "hpa": "#d9a441",
    "static": "#7d8597",
}


def rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """One row a policy: means over days with half-widths of 95 % intervals, GPU hours against ours day by day."""
    mine = next((row for row in outcomes if row.policy == "penstock"), None)
    found = []
    for outcome in outcomes:
        row: dict[str, Any] = {"policy": outcome.policy, "workload": outcome.workload, "knob": outcome.knob}
        for name, figure in (
            ("attainment", outcome.over_days(lambda day: day.attainment)),
            ("gpu_hours", outcome.over_days(lambda day: day.gpu_s / 3600.0)),
            ("ttft_p99_s", outcome.over_days(lambda day: day.ttft_p99_s)),
            ("hit_rate", outcome.over_days(lambda day: day.hit_rate)),
            ("scale_events", outcome.over_days(lambda day: float(day.ups + day.downs))),
        ):
            row[name], row[f"{name}_ci"] = round(figure.mean, 5), _finite(figure.half)
        row["days"] = len(outcome.days)
        if mine is not None and mine is not outcome:
            saved = paired(
                [
                    1.0 - ours.gpu_s / theirs.gpu_s
                    for ours, theirs in zip(mine.days, outcome.days, strict=True)
                ],
                [0.0] * len(mine.days),
            )
            row["ours_saves"], row["ours_saves_ci"] = round(saved.mean, 4), _finite(saved.half)
        found.append(row)
    return found


def _finite(half: float) -> float | None:
    return round(half, 5) if half < float("inf") else None


def plot(groups: Sequence[Sequence[Outcome]], path: Path) -> None:
    """Replicas that hold GPUs over the first day, a panel a workload; the format follows the file's name."""
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
            kept = 100 * sum(day.attainment for day in outcome.days) / len(outcome.days)
            axis.step(
                [24.0 * at / end for at, _ in line],
                [count for _, count in line],
                where="post",
                color=COLOURS.get(outcome.policy, "black"),
                linewidth=2.0 if outcome.policy == "penstock" else 1.2,
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
