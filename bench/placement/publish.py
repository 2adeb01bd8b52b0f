"""Publishes studies: docs/data/scheduling-comparison.json, results/placement.md, results/ablation.md, two plots, the
summary in scheduling.md, and what other policies win in simulator.md."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.placement.ablation import AblationRow, ablation_rows, ablation_text, percent
from bench.placement.data import Played, Shown, as_json, kept, kept_ablation, seeds, shown, when, where
from bench.placement.factorial import factorial_text
from bench.placement.losses import losses_text
from bench.placement.plots import draw_ablation, draw_comparison
from bench.placement.studies import STUDIES
from core.errors import InvalidRequest
from sim.pool.compare import RATE_ERROR, STEP_ERROR
from sim.pool.registry import OURS, RIVALS, STRONGEST
from sim.pool.report import Standing, lead_text, markdown, times

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
"""Marks between which a part of a page is written."""
BY_HAND = "<!-- written by hand from here on -->"
"""Mark of a generated page after which it is not."""


def publish(
    played: Sequence[Played], conditions: Mapping[str, Any], docs: Path, *, keep: bool = False
) -> list[Path]:
    """Write the files under `docs` for which something was played, and return their paths.

    With `keep`, studies that the data hold and that were not played now stay as they are. The ablation is over the
    points of all its studies, so it is played whole, or stays whole. Raises InvalidRequest where only a part of it was
    played.
    """
    for name in ("data", "images", "results"):
        (docs / name).mkdir(exist_ok=True)
    data = docs / "data" / "scheduling-comparison.json"
    before = json.loads(data.read_text()) if keep and data.exists() else None
    studies = _joined([shown(each, conditions) for each in played], [] if before is None else kept(before))
    ablated = [each for each in played if each.study.group == "ablation"]
    if ablated and len(ablated) < sum(each.study.group == "ablation" for each in studies):
        raise InvalidRequest("the ablation is over all its studies: play all of them, or none", param="only")
    rows = ablation_rows([(each.study, each.knee, each.rows) for each in ablated])
    gains = rows or ([] if before is None else kept_ablation(before))
    data.write_text(as_json(studies, gains))
    paths = [data]
    compared = [each for each in studies if each.study.group != "ablation"]
    present = [each for each in compared if each.study.group == "present"]
    points = best_others(present)
    if points:
        paths += [docs / "results" / "placement.md", docs / "images" / "scheduling-comparison.svg"]
        paths[-2].write_text(page_text(compared))
        draw_comparison([(each.study, best) for each, best in points], paths[-1])
    if rows:
        paths += [docs / "results" / "ablation.md", docs / "images" / "scheduling-ablation.svg"]
        of_ablation = [each for each in studies if each.study.group == "ablation"]
        text = head(of_ablation)
        written = ablation_text([each.study for each in ablated], rows, text, image("ablation", "../"))
        paths[-2].write_text(written + by_hand(paths[-2]))
        draw_ablation(rows, paths[-1])
    return paths + _parts_of_pages(docs, studies, gains)


def _joined(played: Sequence[Shown], earlier: Sequence[Shown]) -> list[Shown]:
    """Return the studies played now and those of an earlier run that were not, in the order of STUDIES."""
    now = {each.study.name for each in played}
    place = {study.name: number for number, study in enumerate(STUDIES)}
    every = [*played, *(each for each in earlier if each.study.name not in now)]
    return sorted(every, key=lambda each: place.get(each.study.name, len(place)))


def _parts_of_pages(docs: Path, studies: Sequence[Shown], gains: Sequence[AblationRow]) -> list[Path]:
    """Write what stands between the marks of scheduling.md and simulator.md; returns the pages."""
    paths = []
    present = [each for each in studies if each.study.group == "present"]
    page = docs / "scheduling.md"
    if page.exists() and present and gains:
        page.write_text(between_marks(page.read_text(), overview_text(studies, gains)))
        paths.append(page)
    page = docs / "simulator.md"
    if page.exists() and present:
        page.write_text(between_marks(page.read_text(), losses_text(present)))
        paths.append(page)
    return paths


def overview_text(studies: Sequence[Shown], rows: Sequence[AblationRow]) -> str:
    """Return the summary of both pages: our scheduler beside the best published policy, and what mechanisms gain."""
    present, ablated = (
        [each for each in studies if each.study.group == group] for group in ("present", "ablation")
    )
    lines = ["| mechanism | goodput gained by it | verdict |", "|---|---:|---|"]
    lines += [f"| `{row.name}`: {row.about} | {percent(row.over_all)} | {row.verdict} |" for row in rows]
    return "\n\n".join(
        [
            f"{when(present)}; {seeds(present)}. [All policies and conditions](results/placement.md).",
            *(
                f"{title}:\n\n{summary(some)}"
                for title, held_out in (("Tuned workloads", False), ("Held-out workloads", True))
                if (some := [each for each in present if each.study.held_out == held_out])
            ),
            image("comparison"),
            f"What each mechanism gains over all points, switched off alone ({when(ablated)}; "
            "[every point](results/ablation.md)):",
            "\n".join(lines),
            image("ablation"),
        ]
    )


def between_marks(page: str, text: str) -> str:
    """Return `page` with `text` between the marks. Raises ValueError where a mark is missing."""
    before, rest = page[: page.index(BEGIN)], page[page.index(END) :]
    return f"{before}{BEGIN}\n\n{text}\n\n{rest}"


def by_hand(page: Path) -> str:
    """Return what a page has from the mark BY_HAND on, which a new run leaves; empty where there is none."""
    text = page.read_text() if page.exists() else ""
    return "\n" + text[text.index(BY_HAND) :] if BY_HAND in text else ""


def image(name: str, root: str = "") -> str:
    """Return the Markdown of a plot; `root` leads from the page to docs."""
    about = {
        "comparison": "Lead in goodput and TTFT ratios over the best published policy, with intervals of 95 %",
        "ablation": "Goodput gained by each mechanism, with intervals of 95 %; small dots are single points",
    }
    return f"![{about[name]}]({root}images/scheduling-{name}.svg)"


def head(studies: Sequence[Shown]) -> str:
    """Return the conditions as a paragraph."""
    there = {each.study.title for each in studies}
    group = studies[0].study.group
    left = [study.title for study in STUDIES if study.group == group and study.title not in there]
    rest = f" Not played yet: {'; '.join(left)}." if left else ""
    return (
        f"{when(studies)}; {where(studies)}. That is when and where the runs were played; tables and text are written "
        "from their figures. Seeds share no rows of a trace as long as it has enough. "
        "The workloads are a part of all, named with the "
        f"policies in `bench/placement/studies.py`.{rest} A run is at least ten lifetimes of an answer after two of "
        "warm-up; arrivals go on for one more. Stated speeds, which policies read, are off by a factor drawn for each "
        f"seed (standard deviation {100 * RATE_ERROR:.0f} % for prefill, {100 * STEP_ERROR:.0f} % for a step). "
        "Intervals are of 95 %, by a bootstrap over blocks of about one lifetime; ▲ ▼ mark where ours is better or "
        "worse beyond chance."
    )


def page_text(studies: Sequence[Shown]) -> str:
    """Return the page of the comparison."""
    present = [each for each in studies if each.study.group == "present"]
    parts = [
        "# Placement beside published policies",
        "Written by `make bench-placement`; do not edit. [Comparing policies](../simulator.md#comparing-policies) "
        "defines the terms and the policies.",
        head(present),
        "Without refusals above the knee (shed zero at 1.2) a queue that serves timely requests before late ones "
        "sheds the late ones by starvation. Read goodput there together with the TTFT, and compare policies "
        "where all shed the same share (equal). In the equal rows a request of ours waits at most as long as the "
        "target of its first token (2 s); live it waits `PENSTOCK_QUEUE_DEADLINE_S`, 30 s by default.",
        image("comparison", "../"),
        "## Tuned workloads",
        summary([each for each in present if not each.study.held_out]),
        "## Held-out workloads",
        summary([each for each in present if each.study.held_out]),
    ]
    crossed = [each for each in studies if each.study.group == "factorial"]
    if crossed:
        parts += [
            "## Each placement with each queue",
            f"{when(crossed)}; {where(crossed)}.",
            factorial_text([(each.study, each.standings) for each in crossed]),
        ]
    parts += [_details(each) for each in present]
    older = [each for each in studies if each.study.group == "older"]
    if older:
        parts.append("## Older policies")
        parts.append(
            "Load balancers, and policies that their projects have replaced, for reference only. "
            f"{when(older)}; {where(older)}."
        )
        parts += [_details(each) for each in older]
    return "\n\n".join(parts) + "\n"


def summary(studies: Sequence[Shown]) -> str:
    """Return the best present rival by goodput at each point, and Penstock's lead and latencies over it."""
    lines = [
        "| workload, pool | load | shed | best other | our lead in goodput | TTFT p50, p90 over its | "
        f"over {STRONGEST}'s |",
        "|---|---:|---|---|---:|---:|---:|",
    ]
    for each, best in best_others(studies):
        rivals = [row for row in each.standings if (row.shed, row.load) == (best.shed, best.load)]
        strongest = next((row for row in rivals if row.policy == STRONGEST), best)
        lines.append(
            f"| {each.study.title} | {best.load:g} | {best.shed} | {best.policy} | {lead_text(best)} | "
            f"{_latency(best)} | {_latency(strongest)} |"
        )
    return "\n".join(lines)


def best_others(studies: Sequence[Shown]) -> list[tuple[Shown, Standing]]:
    """Return the present rival with the best goodput at each point that was played."""
    points = []
    for each in studies:
        for shed, load in each.study.points:
            here = [
                row for row in each.standings if (row.shed, row.load) == (shed, load) and row.policy in RIVALS
            ]
            if here:
                points.append((each, max(here, key=lambda row: row.goodput.value)))
    return points


def _latency(row: Standing) -> str:
    return f"{times(row.ttft_p50)}, {times(row.ttft_p90)}"


def _details(shown_study: Shown) -> str:
    study, facts = shown_study.study, shown_study.facts
    parts = [
        f"## {study.title}",
        f"{'Held out' if study.held_out else 'Tuned'}. Load 1 = {facts.knee_rps:.2f} requests/s; an answer lives "
        f"{facts.lifetime_s:.1f} s; runs of {facts.seconds:.0f} s, {facts.warmup_s:.0f} s of them warm-up. In "
        f"time: first token within {facts.slo_ttft_s:g} s on top of the prompt's own prefill, "
        f"{1e3 * facts.slo_tpot_s:.0f} ms per further token.",
    ]
    for shed, load in study.points:
        here = [row for row in shown_study.standings if (row.shed, row.load) == (shed, load)]
        if any(row.policy != OURS for row in here):
            parts.append(f"Load {load:g}, shed {shed}:\n\n{markdown(here)}")
    return "\n\n".join(parts)
