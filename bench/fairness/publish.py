"""Publishes the figures of all runs: docs/data/fairness.json, images/scheduling-fairness.svg, results/fairness.md."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from scheduler.core.rules import QueueRules
from sim.pool.fairness_runs import BASE, CASES, OURS, Figures, ablated, queues
from sim.pool.stats import Interval, interval

Runs = Mapping[tuple[str, str], Sequence[Figures]]
"""Figures by case and queue, one for each seed."""
COLOURS = {"fifo": "#bbbbbb", "vtc_spread": "#edae49", BASE: "#d1495b", OURS: "#0b6e4f"}


def publish(runs: Runs, conditions: Mapping[str, Any], docs: Path) -> list[Path]:
    """Write all files under `docs` and return their paths."""
    for name in ("data", "images", "results"):
        (docs / name).mkdir(parents=True, exist_ok=True)
    data = docs / "data" / "fairness.json"
    image = docs / "images" / "scheduling-fairness.svg"
    page = docs / "results" / "fairness.md"
    data.write_text(as_json(runs, conditions))
    draw(runs, image)
    page.write_text(page_text(runs, conditions))
    return [data, image, page]


def as_json(runs: Runs, conditions: Mapping[str, Any]) -> str:
    """Return JSON with one run per line, so that a new run gives a readable diff."""
    rows = ",\n".join(
        json.dumps({"scene": scene, "queue": queue, "seed": seed} | asdict(figures))
        for (scene, queue), seeds in runs.items()
        for seed, figures in enumerate(seeds, 1)
    )
    return f'{{"conditions": {json.dumps(conditions)},\n"runs": [\n{rows}\n]}}\n'


def over_seeds(runs: Runs, scene: str, queue: str) -> dict[str, Interval]:
    """Return each figure's mean and interval; `gain` = throughput over plain VTC's, in pairs by seed."""
    here, base = runs[scene, queue], runs[scene, BASE]
    figures = {each.name: interval([getattr(run, each.name) for run in here]) for each in fields(Figures)}
    pairs = zip(here, base, strict=True)
    figures["gain"] = interval([mine.tokens_per_s / other.tokens_per_s for mine, other in pairs])
    return figures


def page_text(runs: Runs, conditions: Mapping[str, Any]) -> str:
    """Return the results page."""
    rules = QueueRules()
    backlog = CASES[0].backlog
    parts = [
        "# What fairness costs",
        "Written by `make bench-fairness`; do not edit.",
        f"{conditions['date'][:10]}, commit {conditions['commit']}, {conditions['machine']}: simulated "
        f"{conditions['model']}, {conditions['seeds']} seeds, runs of {conditions['seconds']:g} s of which the first "
        "third is warm-up. Figures are means with half a 95 % interval over seeds. The rules of the queue are in "
        "[scheduling](../scheduling.md#queue).",
        f"{len(backlog.weights)} tenants are backlogged throughout: each keeps {backlog.concurrency} requests "
        "open, each request a document of the tenant (4,000 to 12,000 tokens) and a question, the answer about "
        "40 tokens. All documents together are 1.7 times what the caches hold, which is where order matters: at "
        "1.2 times an "
        "earlier version gained half, and where everything fits there is little to gain. "
        "**Throughput** counts prompt and output tokens of "
        "finished requests. **Gap** is the largest difference in service (1 per uncached prompt token, 2 per output "
        "token, over the weight) that built up between two tenants while both waited; its **bound** is "
        "2 max(L_in, 2 M) / least weight + Q, L_in the longest prompt, M the most uncached and output tokens in "
        "flight. "
        "**Jain** is over service against weighted fair shares.",
        "- `fifo`: first come first served, our placement.\n"
        "- `vtc_spread`: plain Virtual Token Counter (Sheng et al., OSDI'24) over a pool balanced by load alone. VTC "
        "is published for one server; this is what it is with several of them and nothing else.\n"
        "- `vtc`: the same counter with our prefix-aware placement; gains are over this, the stronger one.\n"
        f"- `penstock`: ours. The first {rules.reorder_window} requests of the first tenant are compared by cached "
        "prefix where its next is mostly uncached.",
        *(f"## {scene.name.capitalize()}\n\n{scene.about.capitalize()}.\n\n"
          f"{table(runs, scene.name, tuple(queues()))}" for scene in CASES),
        "![Throughput and service gap by queue](../images/scheduling-fairness.svg)",
        f"## Without reordering\n\nOurs in the first scene, and without the comparison by cached prefix.\n\n"
        f"{table(runs, CASES[0].name, (OURS, *ablated()))}",
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def table(runs: Runs, scene: str, names: Sequence[str]) -> str:
    """Return the table of a case with one row per queue."""
    lines = [
        "| queue | ktokens/s | requests/s | over vtc | hits | Jain | gap, ktokens | bound | gap at most |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in names:
        each = over_seeds(runs, scene, name)
        worst = max(run.max_gap / run.bound for run in runs[scene, name])
        lines.append(
            f"| `{name}` | {_shown(each['tokens_per_s'], 1e-3)} | {_shown(each['requests_per_s'])} "
            f"| {_shown(each['gain'], digits=2)}x | {each['hit_rate'].mean:.0%} | {each['jain'].mean:.3f} "
            f"| {_shown(each['max_gap'], 1e-3)} | {each['bound'].mean / 1e3:.0f} | {worst:.0%} of it |"
        )
    return "\n".join(lines)


def _shown(value: Interval, scale: float = 1.0, digits: int = 1) -> str:
    half = f" ±{scale * value.half:.{digits}f}" if value.n > 1 else ""
    return f"{scale * value.mean:.{digits}f}{half}"


def draw(runs: Runs, path: Path) -> None:
    """Plot throughput relative to plain VTC's and the service gap, by case and queue."""
    with rc_context({"svg.hashsalt": "penstock", "svg.fonttype": "none"}):
        canvas = Figure(figsize=(7.5, 3.2), layout="constrained")
        gains, gaps = canvas.subplots(1, 2)
        _bars(gains, runs, "gain", 1.0)
        gains.axhline(1.5, color="black", linewidth=0.8, linestyle=":")
        gains.set_title("throughput over plain VTC", fontsize=9)
        _bars(gaps, runs, "max_gap", 1e-3)
        gaps.set_title("largest service gap, ktokens", fontsize=9)
        handles, names = gains.get_legend_handles_labels()
        canvas.legend(handles, names, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
        canvas.savefig(path, metadata={"Date": None})


def _bars(axes: Any, runs: Runs, figure: str, scale: float) -> None:
    width = 0.8 / len(COLOURS)
    for number, (queue, colour) in enumerate(COLOURS.items()):
        values = [over_seeds(runs, scene.name, queue)[figure] for scene in CASES]
        axes.bar(
            [place + width * number for place in range(len(CASES))],
            [scale * value.mean for value in values],
            width,
            yerr=[scale * value.half if value.n > 1 else 0.0 for value in values],
            color=colour,
            label=queue,
            capsize=2,
        )
    axes.set_xticks([place + 0.3 for place in range(len(CASES))], [scene.name for scene in CASES], fontsize=7)
    axes.tick_params(axis="y", labelsize=8)
