"""Publishes all workloads: docs/data/scheduling-comparison.json, images/scheduling-*.svg, results/placement.md."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sim.pool.comparison import Outcome
from sim.pool.plots import plot
from sim.pool.registry import BASELINES, OURS
from sim.pool.report import Standing, compact, markdown, standings

PLOTS = (
    ("scheduling-goodput.svg", "goodput_rps", "requests/s within both targets", False),
    ("scheduling-ttft.svg", "ttft_p90_s", "TTFT p90, s", True),
    ("scheduling-hits.svg", "hit_rate", "share of prompt tokens found cached", False),
)


def publish(outcomes: Mapping[str, Outcome], conditions: Mapping[str, Any], docs: Path) -> list[Path]:
    """Write all files under `docs` and return their paths."""
    ranked = standings([row for outcome in outcomes.values() for row in outcome.rows])
    for name in ("data", "images", "results"):
        (docs / name).mkdir(exist_ok=True)
    data = docs / "data" / "scheduling-comparison.json"
    data.write_text(as_json(ranked, outcomes, conditions))
    images = []
    for name, figure, label, log in PLOTS:
        plot(ranked, docs / "images" / name, figure, label, log=log)
        images.append(docs / "images" / name)
    page = docs / "results" / "placement.md"
    page.write_text(page_text(ranked, outcomes, conditions))
    return [data, *images, page]


def as_json(
    ranked: Sequence[Standing], outcomes: Mapping[str, Outcome], conditions: Mapping[str, Any]
) -> str:
    """Return JSON with one standing per line, so that a new run gives a readable diff."""
    knees = {
        name: {
            "knee_rps": round(outcome.knee.rate_rps, 3),
            "seconds": outcome.setting.seconds,
            "warmup_s": outcome.setting.warmup_s,
            "slo_ttft_s": outcome.rows[0]["slo_ttft_s"],
            "slo_tpot_s": outcome.rows[0]["slo_tpot_s"],
            "replicas": outcome.rows[0]["replicas"],
        }
        for name, outcome in outcomes.items()
    }
    rows = ",\n".join(json.dumps(row) for row in compact(ranked))
    return (
        f'{{"conditions": {json.dumps(conditions)},\n"figures": "mean, half of the 95 % interval over seeds",\n'
        f'"workloads": {json.dumps(knees, indent=1)},\n"standings": [\n{rows}\n]}}\n'
    )


def page_text(
    ranked: Sequence[Standing], outcomes: Mapping[str, Outcome], conditions: Mapping[str, Any]
) -> str:
    """Return the results page."""
    first = next(iter(outcomes.values())).rows[0]
    parts = [
        "# Placement beside published policies",
        "Written by `make bench-placement`; do not edit. [Comparing policies](../simulator.md#comparing-policies) "
        "defines the terms and the policies, and says where others win.",
        f"{conditions['date'][:10]}, commit {conditions['commit']}, {conditions['machine']}: {conditions['model']}, "
        f"hosts: {conditions['hosts']} ({first['replicas']} replicas), {conditions['seeds']} seeds, shed rate: "
        f"{conditions['shed']}. In time: "
        f"first token within {first['slo_ttft_s']:g} s on top of the prompt's own prefill, "
        f"{1e3 * first['slo_tpot_s']:.0f} ms per further token. "
        "Goodput in requests/s with half a 95 % interval over seeds; a lead is paired by seed, ▲ ▼ "
        "where it is beyond chance.",
        summary(ranked),
        "![Goodput over load](../images/scheduling-goodput.svg)",
        "![TTFT p90 over load](../images/scheduling-ttft.svg)",
        "![Hit rate over load](../images/scheduling-hits.svg)",
    ]
    for name, outcome in outcomes.items():
        here = [each for each in ranked if each.workload == outcome.rows[0]["workload"]]
        parts.append(
            f"## {name}\n\nLoad 1 = {outcome.knee.rate_rps:.2f} requests/s; runs of {outcome.setting.seconds:.0f} s, "
            f"{outcome.setting.warmup_s:.0f} s of them warm-up.\n\n{markdown(here)}"
        )
    return "\n\n".join(parts) + "\n"


def summary(ranked: Sequence[Standing]) -> str:
    """Return a table of the best published policy and Penstock's lead, by workload and load."""
    by_place: dict[str, dict[float, list[Standing]]] = {}
    for each in ranked:
        if each.policy == OURS or each.policy in BASELINES:
            by_place.setdefault(each.workload, {}).setdefault(each.load, []).append(each)
    loads = sorted({each.load for each in ranked})
    lines = [
        "| workload | " + " | ".join(f"load {load:g}: best other, our lead" for load in loads) + " |",
        "|---|" + "---|" * len(loads),
    ]
    lines += [
        f"| {workload} | {' | '.join(against_best(places.get(load, [])) for load in loads)} |"
        for workload, places in by_place.items()
    ]
    return "\n".join(lines)


def against_best(rows: Sequence[Standing]) -> str:
    others = [each for each in rows if each.policy != OURS and each.lead is not None]
    if not others:
        return "-"
    best = max(others, key=lambda each: each.figures["goodput_rps"].mean)
    goodput, lead = best.figures["goodput_rps"].mean, best.lead
    if lead is None or goodput <= 0.0:
        return f"{best.policy}, -"
    mark = {"better": " ▲", "worse": " ▼", "same": ""}[lead.verdict]
    half = f" ±{100 * lead.half / goodput:.1f}" if lead.n > 1 else ""
    return f"{best.policy}, {100 * lead.mean / goodput:+.1f}{half} %{mark}"
