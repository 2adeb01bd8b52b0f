"""Where published policies win: points of the comparison at which one of them is better beyond chance."""

from collections.abc import Callable, Sequence

from bench.placement.data import Shown, seeds, when
from sim.pool.blocks import Bounds
from sim.pool.registry import RIVALS
from sim.pool.report import Standing


def losses_text(present: Sequence[Shown]) -> str:
    """Return the text between the marks of docs/simulator.md."""
    lines, points, lost = [], 0, 0
    for each in present:
        for shed, load in each.study.points:
            here = [
                row for row in each.standings if (row.shed, row.load) == (shed, load) and row.policy in RIVALS
            ]
            points += bool(here)
            goodput = _cell(here, _loses_goodput, lambda row: _percent(row.lead))
            first_tokens = [
                _cell(here, lambda row: _is_later(row.ttft_p50), lambda row: _times(row.ttft_p50)),
                _cell(here, lambda row: _is_later(row.ttft_p90), lambda row: _times(row.ttft_p90)),
            ]
            if goodput or any(first_tokens):
                lost += goodput != ""
                cells = " | ".join(cell or "-" for cell in (goodput, *first_tokens))
                lines.append(f"| {each.study.title} | {load:g} | {shed} | {cells} |")
    return "\n\n".join(
        [
            f"{when(present)}; {seeds(present)}. All present policies that are better than ours beyond "
            f"chance, at {len(lines)} of {points} points; at {lost} of them "
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


def _loses_goodput(row: Standing) -> bool:
    return row.lead is not None and row.lead.verdict() == "below"


def _is_later(ratio: Bounds | None) -> bool:
    return ratio is not None and ratio.verdict(1.0) == "above"


def _percent(lead: Bounds | None) -> str:
    return "" if lead is None else f"{100 * lead.value:+.1f} %"


def _times(ratio: Bounds | None) -> str:
    return "" if ratio is None else f"{ratio.value:.2f}x"


def _cell(rows: Sequence[Standing], wins: Callable[[Standing], bool], said: Callable[[Standing], str]) -> str:
    return ", ".join(f"`{row.policy}` {said(row)}" for row in rows if wins(row))
