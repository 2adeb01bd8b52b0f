"""Where published policies win: points of the comparison at which one of them is better beyond chance."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.placement.studies import STUDIES, Study
from sim.pool.registry import RIVALS

Row = Mapping[str, Any]
"""A standing as docs/data has it."""


def losses_text(data: Mapping[str, Any], studies: Sequence[Study] = STUDIES) -> str:
    """Return the text between the marks of docs/simulator.md, from what docs/data/scheduling-comparison.json holds."""
    conditions, lines, points, lost = data["conditions"], [], 0, 0
    for study in (each for each in studies if each.group == "present"):
        for shed, load in study.points:
            here = [
                row
                for row in data["standings"]
                if (row["study"], row["shed"], row["load"]) == (study.name, shed, load)
                and row["policy"] in RIVALS
            ]
            points += bool(here)
            cells = [
                _cell(here, lead_lost, _lead),
                *(_cell(here, later(share), ratio(share)) for share in (50, 90)),
            ]
            if any(cells):
                lost += cells[0] != ""
                lines.append(
                    f"| {study.title} | {load:g} | {shed} | {' | '.join(cell or '-' for cell in cells)} |"
                )
    return "\n\n".join(
        [
            f"{conditions['date'][:10]}, commit {conditions['commit']}, {conditions['seeds']} seeds: all present "
            f"policies that are better than ours beyond chance, at {len(lines)} of {points} points; at {lost} of them "
            "in goodput. First tokens are compared with those of policies that serve fewer requests in time, too.",
            "\n".join(
                [
                    "| workload, pool | load | shed | more goodput (our lead) | earlier TTFT p50 (ours over its) | "
                    "earlier TTFT p90 |",
                    "|---|---:|---|---|---|---|",
                    *lines,
                ]
            ),
        ]
    )


def lead_lost(row: Row) -> bool:
    """Whether the policy serves more requests in time than ours, beyond chance."""
    lead = row["lead"]
    return lead is not None and lead[2] is not None and lead[2] < 0.0


def later(share: int) -> Callable[[Row], bool]:
    """Return whether our TTFT at this percentile is larger than the policy's, beyond chance."""

    def is_later(row: Row) -> bool:
        over = row[f"ours_over_ttft_p{share}"]
        return over is not None and over[1] is not None and over[1] > 1.0

    return is_later


def ratio(share: int) -> Callable[[Row], str]:
    """Return how our TTFT at this percentile over the policy's is shown."""
    return lambda row: f"{row[f'ours_over_ttft_p{share}'][0]:.2f}x"


def _lead(row: Row) -> str:
    return f"{100 * row['lead'][0]:+.1f} %"


def _cell(rows: Sequence[Row], wins: Callable[[Row], bool], shown: Callable[[Row], str]) -> str:
    return ", ".join(f"`{row['policy']}` {shown(row)}" for row in rows if wins(row))
