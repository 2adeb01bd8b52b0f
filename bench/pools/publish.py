"""Publishes the days: docs/data/pools.json, docs/images/pools.svg, docs/results/pools.md."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from bench.pools.play import Day, Days
from core.money import PICO_PER_USD
from sim.pool.plots import style

WINDOW_S = 300.0
"""Seconds over which quantiles of the TTFT and rates are taken."""
COLOURS = {"demand": "#777777", "hosts": "#d1495b", "serving": "#0b6e4f", "p50": "#0b6e4f", "p99": "#d1495b"}


def publish(days: Days, conditions: Mapping[str, Any], docs: Path) -> list[Path]:
    """Write all files under `docs` and return their paths."""
    for name in ("data", "images", "results"):
        (docs / name).mkdir(parents=True, exist_ok=True)
    data, image, page = (
        docs / "data" / "pools.json",
        docs / "images" / "pools.svg",
        docs / "results" / "pools.md",
    )
    rows = ",\n".join(json.dumps(figures(day)) for day in days.days)
    head = json.dumps({**conditions, "model": days.model, "day_s": days.day_s, "peak_rps": days.peak_rps})
    data.write_text(f'{{"conditions": {head},\n"days": [\n{rows}\n]}}\n')
    draw(days, image)
    page.write_text(page_text(days, conditions))
    return [data, image, page]


def figures(day: Day) -> dict[str, Any]:
    """The figures of a day."""
    seen = day.seen
    return {
        "workload": day.workload,
        "requests": day.requests,
        "gpu_hours": round(day.gpu_hours, 2),
        "simulated_gpu_hours": round(day.simulated_gpu_hours, 2),
        "attainment": round(day.acted.attainment, 5),
        "simulated_attainment": round(day.simulated.attainment, 5),
        "ttft_p99_s": round(day.acted.ttft_p99_s, 3),
        "simulated_ttft_p99_s": round(day.simulated.ttft_p99_s, 3),
        "created": seen.created,
        "destroyed": seen.destroyed,
        "interrupted": seen.interrupted,
        "bill_cents": seen.bill_cents,
        "cost_cents": seen.cost_cents,
    }


def page_text(days: Days, conditions: Mapping[str, Any]) -> str:
    """Return the results page."""
    kind = days.kind
    lines = [
        "# A day of hosts that come and go",
        "",
        "Written by `make bench-pools`; do not edit.",
        "",
        f"{conditions['date'][:10]}, commit {conditions['commit']}, {conditions['machine']}, "
        f"seed {conditions['seed']}: {days.model} on hosts of kind {kind.slug} at "
        f"{kind.usd_pico_per_hour / PICO_PER_USD:.2f} USD an hour, days of {days.day_s / 3600:g} h, "
        f"{days.peak_rps:g} requests/s at the peak. All times are simulated.",
        "",
        "Each day is played twice with the same requests. **Acted**: the autoscaler's plan is stored as the scheduler "
        "stores it, `workers.acting` turns it into desired hosts, and a pass every ten seconds creates and destroys "
        "droplets at the stand-in of DigitalOcean; tables are in memory, and no droplet fails. One takes "
        f"{kind.create_s:.0f} s (assumed) until its agent's first heartbeat, its engine then {kind.load_s:.0f} s "
        "(published) to load. GPU hours are those of droplets, from create to destroy. **Simulated**: the same day in "
        "[`penstock sim autoscale`](autoscaler.md), where a replica costs from the start of its wake to the end of "
        "its drain and there are no creates. The difference is what acting adds: hosts that are kept for a while after "
        "their last replica rests, and passes that come only every ten seconds.",
        "",
        "| day | requests | GPU hours acted, simulated | difference | promises kept acted, simulated "
        "| TTFT p99 acted, simulated | hosts created, destroyed | requests lost | bill = our cost |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|",
        *(_row(day) for day in days.days),
        "",
        "*Promises kept*: first token and time per token within the model's targets. *Requests lost* ran on a host "
        "when it was destroyed. *Bill = our cost*: the stand-in's bill of all droplets, with those that were created "
        "before the day, and the platform's own cost of the same hosts from its intents.",
        "",
        "![Demand, hosts and serving replicas, cost, and TTFT over the day](../images/pools.svg)",
        "",
    ]
    return "\n".join(lines)


def _row(day: Day) -> str:
    acted, simulated, seen = day.gpu_hours, day.simulated_gpu_hours, day.seen
    equal = "yes" if seen.bill_cents == seen.cost_cents else "**no**"
    return (
        f"| {day.workload} | {day.requests:,} | {acted:.1f}, {simulated:.1f} | {acted / simulated - 1:+.1%} "
        f"| {day.acted.attainment:.2%}, {day.simulated.attainment:.2%} "
        f"| {day.acted.ttft_p99_s:.2f}, {day.simulated.ttft_p99_s:.2f} s | {seen.created}, {seen.destroyed} "
        f"| {seen.interrupted} | {equal}, {seen.bill_cents / 100:,.2f} USD |"
    )


def draw(days: Days, path: Path) -> None:
    """Plot demand, hosts and replicas, cost and TTFT over each day, one column a day."""
    with style():
        canvas = Figure(figsize=(4.0 * len(days.days), 7.5), layout="constrained")
        grid = canvas.subplots(4, len(days.days), sharex="col", sharey="row", squeeze=False)
        for column, day in enumerate(days.days):
            _column([row[column] for row in grid], day)
        for row, label in enumerate(("requests/s", "count", "USD/h", "TTFT, s")):
            grid[row][0].set_ylabel(label, fontsize=9)
        canvas.savefig(path, metadata={"Date": None})


def _column(axes: Sequence[Any], day: Day) -> None:
    samples = day.seen.samples
    hours = [sample.at / 3600 for sample in samples]
    demand, pool, cost, first = axes
    demand.set_title(day.workload, fontsize=10)
    rates = _windows([(sample.at, float(sample.arrivals)) for sample in samples])
    demand.plot(
        [at / 3600 for at in rates],
        [sum(found) / WINDOW_S for found in rates.values()],
        color=COLOURS["demand"],
    )
    pool.step(
        hours, [sample.hosts for sample in samples], color=COLOURS["hosts"], label="hosts", where="post"
    )
    pool.step(
        hours, [sample.serving for sample in samples], color=COLOURS["serving"], label="serving", where="post"
    )
    cost.step(
        hours, [sample.hosts * day.usd_per_hour for sample in samples], color=COLOURS["hosts"], where="post"
    )
    found = _windows(day.seen.first_tokens)
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        values = [sorted(window)[int(share * (len(window) - 1))] for window in found.values()]
        first.plot([at / 3600 for at in found], values, color=COLOURS[name], label=name)
    first.set_yscale("log")
    first.set_xlabel("hour of the day", fontsize=9)
    for each in (pool, first):
        each.legend(fontsize=8, frameon=False)
    for each in axes:
        each.tick_params(labelsize=8)


def _windows(points: Sequence[tuple[float, float]]) -> dict[float, list[float]]:
    """The values by the window of their time; windows without any are left out."""
    found: dict[float, list[float]] = {}
    for at, value in points:
        found.setdefault(at // WINDOW_S * WINDOW_S, []).append(value)
    return dict(sorted(found.items()))
