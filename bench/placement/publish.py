"""Publishes studies: docs/data/scheduling-comparison.json, results/placement.md and results/ablation.md."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.placement.ablation import ablation_text
from bench.placement.factorial import factorial_text
from bench.placement.studies import STUDIES, Study
from sim.pool.compare import RATE_ERROR, STEP_ERROR, Row, Setting
from sim.pool.knee import Knee
from sim.pool.registry import OURS, RIVALS, STRONGEST
from sim.pool.report import Standing, compact, lead_text, markdown, standings, times


@dataclass(frozen=True, slots=True)
class Played:
    """A study with its rows."""

    study: Study
    knee: Knee
    setting: Setting
    rows: Sequence[Row]

    def standings(self) -> list[Standing]:
        """Return the standings of all points."""
        return standings(self.rows)


def publish(played: Sequence[Played], conditions: Mapping[str, Any], docs: Path) -> list[Path]:
    """Write the files under `docs` for which something was played, and return their paths."""
    for name in ("data", "results"):
        (docs / name).mkdir(exist_ok=True)
    ranked = {each.study.name: each.standings() for each in played}
    data = docs / "data" / "scheduling-comparison.json"
    data.write_text(as_json(played, ranked, conditions))
    paths = [data]
    compared = [each for each in played if each.study.group != "ablation"]
    if any(each.study.group == "present" for each in compared):
        paths.append(docs / "results" / "placement.md")
        paths[-1].write_text(page_text(compared, ranked, conditions))
    ablated = [each for each in played if each.study.group == "ablation"]
    if ablated:
        paths.append(docs / "results" / "ablation.md")
        paths[-1].write_text(
            ablation_text([(each.study, each.knee, each.rows) for each in ablated], head(ablated, conditions))
        )
    return paths


def as_json(
    played: Sequence[Played], ranked: Mapping[str, Sequence[Standing]], conditions: Mapping[str, Any]
) -> str:
    """Return JSON with one standing per line, so that a new run gives a readable diff."""
    studies = {
        each.study.name: {
            "knee_rps": round(each.knee.rate_rps, 3),
            "seconds": each.setting.seconds,
            "warmup_s": each.setting.warmup_s,
            "lifetime_s": each.setting.lifetime_s,
            "slo_ttft_s": each.rows[0]["slo_ttft_s"],
            "slo_tpot_s": each.rows[0]["slo_tpot_s"],
            "held_out": each.study.held_out,
        }
        for each in played
    }
    rows = ",\n".join(
        json.dumps({"study": name, **row}) for name, here in ranked.items() for row in compact(here)
    )
    return (
        f'{{"conditions": {json.dumps(conditions)},\n"figures": "value, low and high of the 95 % interval by blocks",\n'
        f'"studies": {json.dumps(studies, indent=1)},\n"standings": [\n{rows}\n]}}\n'
    )


def head(played: Sequence[Played], conditions: Mapping[str, Any]) -> str:
    """Return the conditions as a paragraph."""
    missing = [study.title for study in STUDIES if study.group == played[0].study.group]
    shown = {each.study.title for each in played}
    left = [title for title in missing if title not in shown]
    rest = f" Not played yet: {'; '.join(left)}." if left else ""
    return (
        f"{conditions['date'][:10]}, commit {conditions['commit']}, {conditions['machine']}, {conditions['seeds']} "
        "seeds that share no rows of a trace as long as it has enough. The workloads are a part of all, named with the "
        f"policies in `bench/placement/studies.py`.{rest} A run is at least ten lifetimes of an answer after two of "
        "warm-up; arrivals go on for one more. Stated speeds, which policies read, are off by a factor drawn for each "
        f"seed (standard deviation {100 * RATE_ERROR:.0f} % for prefill, {100 * STEP_ERROR:.0f} % for a step). "
        "Intervals are of 95 %, by a bootstrap over blocks of about one lifetime; ▲ ▼ mark where ours is better or "
        "worse beyond chance."
    )


def page_text(
    played: Sequence[Played], ranked: Mapping[str, Sequence[Standing]], conditions: Mapping[str, Any]
) -> str:
    """Return the page of the comparison."""
    present = [each for each in played if each.study.group == "present"]
    parts = [
        "# Placement beside published policies",
        "Written by `make bench-placement`; do not edit. [Comparing policies](../simulator.md#comparing-policies) "
        "defines the terms and the policies.",
        head(present, conditions),
        "Without refusals above the knee (shed zero at 1.2) a queue that serves timely requests before late ones "
        "sheds the late ones by starvation. Read goodput there together with the TTFT, and compare policies "
        "where all shed the same share (equal).",
        "## Tuned workloads",
        summary([each for each in present if not each.study.held_out], ranked),
        "## Held-out workloads",
        summary([each for each in present if each.study.held_out], ranked),
    ]
    crossed = [each for each in played if each.study.group == "factorial"]
    if crossed:
        parts += [
            "## Each placement with each queue",
            factorial_text([(each.study, ranked[each.study.name]) for each in crossed]),
        ]
    parts += [_details(each, ranked[each.study.name]) for each in present]
    older = [each for each in played if each.study.group == "older"]
    if older:
        parts.append("## Older policies")
        parts.append("Load balancers, and policies that their projects have replaced, for reference only.")
        parts += [_details(each, ranked[each.study.name]) for each in older]
    return "\n\n".join(parts) + "\n"


def summary(played: Sequence[Played], ranked: Mapping[str, Sequence[Standing]]) -> str:
    """Return the best present rival by goodput at each point, and Penstock's lead and latencies over it."""
    lines = [
        "| workload, pool | load | shed | best other | our lead in goodput | TTFT p50, p90 over its | "
        f"over {STRONGEST}'s |",
        "|---|---:|---|---|---:|---:|---:|",
    ]
    for each in played:
        for shed, load in each.study.points:
            here = [
                row
                for row in ranked[each.study.name]
                if (row.shed, row.load) == (shed, load) and row.policy in RIVALS
            ]
            if not here:
                continue
            best = max(here, key=lambda row: row.goodput.value)
            strongest = next((row for row in here if row.policy == STRONGEST), best)
            lines.append(
                f"| {each.study.title} | {load:g} | {shed} | {best.policy} | {lead_text(best)} | {_latency(best)} | "
                f"{_latency(strongest)} |"
            )
    return "\n".join(lines)


def _latency(row: Standing) -> str:
    return f"{times(row.ttft_p50)}, {times(row.ttft_p90)}"


def _details(played: Played, ranked: Sequence[Standing]) -> str:
    study, setting, first = played.study, played.setting, played.rows[0]
    parts = [
        f"## {study.title}",
        f"{'Held out' if study.held_out else 'Tuned'}. Load 1 = {played.knee.rate_rps:.2f} requests/s; an answer lives "
        f"{setting.lifetime_s:.1f} s; runs of {setting.seconds:.0f} s, {setting.warmup_s:.0f} s of them warm-up. In "
        f"time: first token within {first['slo_ttft_s']:g} s on top of the prompt's own prefill, "
        f"{1e3 * first['slo_tpot_s']:.0f} ms per further token.",
    ]
    for shed, load in study.points:
        here = [row for row in ranked if (row.shed, row.load) == (shed, load)]
        if any(row.policy != OURS for row in here):
            parts.append(f"Load {load:g}, shed {shed}:\n\n{markdown(here)}")
    return "\n\n".join(parts)
