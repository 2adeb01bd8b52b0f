"""Publishes studies: docs/data/scheduling-comparison.json, results/placement.md, results/ablation.md, two plots, the
summary in scheduling.md, and what other policies win in simulator.md."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.placement.ablation import AblationRow, ablation_rows, ablation_text, percent
from bench.placement.factorial import factorial_text
from bench.placement.losses import losses_text
from bench.placement.plots import draw_ablation, draw_comparison
from bench.placement.studies import STUDIES, Study
from sim.pool.compare import RATE_ERROR, STEP_ERROR, Row, Setting
from sim.pool.knee import Knee
from sim.pool.registry import OURS, RIVALS, STRONGEST
from sim.pool.report import Standing, compact, lead_text, markdown, standings, times

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
"""Marks between which a part of a page is written."""


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
    for name in ("data", "images", "results"):
        (docs / name).mkdir(exist_ok=True)
    ranked = {each.study.name: each.standings() for each in played}
    data = docs / "data" / "scheduling-comparison.json"
    data.write_text(as_json(played, ranked, conditions))
    paths = [data]
    compared = [each for each in played if each.study.group != "ablation"]
    present = [each for each in compared if each.study.group == "present"]
    points = best_others(present, ranked)
    if points:
        paths += [docs / "results" / "placement.md", docs / "images" / "scheduling-comparison.svg"]
        paths[-2].write_text(page_text(compared, ranked, conditions))
        draw_comparison(points, paths[-1])
    ablated = [each for each in played if each.study.group == "ablation"]
    rows = ablation_rows([(each.study, each.knee, each.rows) for each in ablated])
    if rows:
        paths += [docs / "results" / "ablation.md", docs / "images" / "scheduling-ablation.svg"]
        studies = [each.study for each in ablated]
        paths[-2].write_text(
            ablation_text(studies, rows, head(ablated, conditions), image("ablation", "../"))
        )
        draw_ablation(rows, paths[-1])
    page = docs / "scheduling.md"
    if page.exists() and points and rows:
        text = overview_text(present, ranked, rows, conditions)
        page.write_text(between_marks(page.read_text(), text))
        paths.append(page)
    page = docs / "simulator.md"
    if page.exists() and points:
        text = losses_text(json.loads(data.read_text()), [each.study for each in present])
        page.write_text(between_marks(page.read_text(), text))
        paths.append(page)
    return paths


def overview_text(
    present: Sequence[Played],
    ranked: Mapping[str, Sequence[Standing]],
    rows: Sequence[AblationRow],
    conditions: Mapping[str, Any],
) -> str:
    """Return the summary of both pages: our scheduler beside the best published policy, and what mechanisms gain."""
    lines = ["| mechanism | goodput gained by it | verdict |", "|---|---:|---|"]
    lines += [f"| `{row.name}`: {row.about} | {percent(row.over_all)} | {row.verdict} |" for row in rows]
    return "\n\n".join(
        [
            f"{conditions['date'][:10]}, commit {conditions['commit']}, {conditions['seeds']} seeds. "
            "[All policies and conditions](results/placement.md).",
            *(
                f"{title}:\n\n{summary(some, ranked)}"
                for title, held_out in (("Tuned workloads", False), ("Held-out workloads", True))
                if (some := [each for each in present if each.study.held_out == held_out])
            ),
            image("comparison"),
            "What each mechanism gains over all points, switched off alone ([every point](results/ablation.md)):",
            "\n".join(lines),
            image("ablation"),
        ]
    )


def between_marks(page: str, text: str) -> str:
    """Return `page` with `text` between the marks. Raises ValueError where a mark is missing."""
    before, rest = page[: page.index(BEGIN)], page[page.index(END) :]
    return f"{before}{BEGIN}\n\n{text}\n\n{rest}"


def image(name: str, root: str = "") -> str:
    """Return the Markdown of a plot; `root` leads from the page to docs."""
    about = {
        "comparison": "Lead in goodput and TTFT ratios over the best published policy, with intervals of 95 %",
        "ablation": "Goodput gained by each mechanism, with intervals of 95 %; small dots are single points",
    }
    return f"![{about[name]}]({root}images/scheduling-{name}.svg)"


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
        image("comparison", "../"),
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
    for study, best in best_others(played, ranked):
        rivals = [row for row in ranked[study.name] if (row.shed, row.load) == (best.shed, best.load)]
        strongest = next((row for row in rivals if row.policy == STRONGEST), best)
        lines.append(
            f"| {study.title} | {best.load:g} | {best.shed} | {best.policy} | {lead_text(best)} | {_latency(best)} | "
            f"{_latency(strongest)} |"
        )
    return "\n".join(lines)


def best_others(
    played: Sequence[Played], ranked: Mapping[str, Sequence[Standing]]
) -> list[tuple[Study, Standing]]:
    """Return the present rival with the best goodput at each point that was played."""
    points = []
    for each in played:
        for shed, load in each.study.points:
            here = [
                row
                for row in ranked[each.study.name]
                if (row.shed, row.load) == (shed, load) and row.policy in RIVALS
            ]
            if here:
                points.append((each.study, max(here, key=lambda row: row.goodput.value)))
    return points


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
