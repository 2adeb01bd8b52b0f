"""Summarises rows: figures with intervals by blocks, differences to Penstock's policy, and tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sim.pool.blocks import Block, Bounds, bounds, goodput, ratio, ttft
from sim.pool.compare import Row
from sim.pool.registry import OURS

FIGURES = (
    "goodput_rps", "slo_met", "ttft_p50_s", "ttft_p90_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s", "hit_rate",
    "shed_rate", "jain", "max_service_gap", "gpu_hours", "bound_rps",
)  # fmt: skip
COLUMNS = (
    "policy", "goodput req/s", "in time", "ours leads by", "TTFT p50", "p90", "p99 s", "ours/theirs p50", "p90",
    "TPOT p50 ms", "hits", "shed", "Jain",
)  # fmt: skip
MARKS = {"above": " ▲", "below": " ▼", "same": ""}


@dataclass(frozen=True, slots=True)
class Standing:
    """One policy at one load of one workload, over all seeds."""

    policy: str
    workload: str
    shed: str
    load: float
    rate_rps: float
    seeds: int
    figures: Mapping[str, float]
    """Means over seeds; a figure without a value for some seed is omitted."""
    goodput: Bounds
    lead: Bounds | None
    """Penstock's goodput over this policy's, less 1; None for Penstock's and where it did not run."""
    ttft_p50: Bounds | None
    """Penstock's median TTFT over this policy's: above 1, Penstock's first tokens are later."""
    ttft_p90: Bounds | None


def standings(rows: Sequence[Row]) -> list[Standing]:
    """Return one standing per workload, way of shedding, load and policy; within a load the best goodput first."""
    groups: dict[tuple[str, str, float, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["workload"], row["shed"], row["load"], row["policy"]), []).append(row)
    result = [
        _standing(group, groups.get((workload, shed, load, OURS), []))
        for (workload, shed, load, _), group in groups.items()
    ]
    return sorted(result, key=lambda each: (each.workload, each.shed, each.load, -each.goodput.value))


def _standing(rows: Sequence[Row], ours: Sequence[Row]) -> Standing:
    first = rows[0]
    figures = {
        name: sum(float(row[name]) for row in rows) / len(rows)
        for name in FIGURES
        if all(row[name] is not None for row in rows)
    }
    lead = p50 = p90 = None
    pairs = _pairs(ours, rows)
    if pairs and first["policy"] != OURS:
        over = ratio(pairs, goodput)
        lead = Bounds(over.value - 1.0, over.low - 1.0, over.high - 1.0)
        p50, p90 = ratio(pairs, ttft(0.5)), ratio(pairs, ttft(0.9))
    return Standing(
        first["policy"],
        first["workload"],
        first["shed"],
        first["load"],
        float(first["rate_rps"]),
        len(rows),
        figures,
        bounds([block for row in rows for block in row["blocks"]], goodput),
        lead,
        p50,
        p90,
    )


def _pairs(ours: Sequence[Row], theirs: Sequence[Row]) -> list[tuple[Block, Block]]:
    """Return the blocks of two policies that ran with the same seeds, in pairs."""
    by_seed = {row["seed"]: row["blocks"] for row in ours}
    return [
        pair
        for row in theirs
        if row["seed"] in by_seed
        for pair in zip(by_seed[row["seed"]], row["blocks"], strict=True)
    ]


def cells(each: Standing) -> list[str]:
    """Return a standing as a row of COLUMNS."""
    return [
        each.policy,
        with_interval(each.goodput),
        share(each.figures.get("slo_met")),
        lead_text(each),
        number(each.figures.get("ttft_p50_s"), 2),
        number(each.figures.get("ttft_p90_s"), 2),
        number(each.figures.get("ttft_p99_s"), 2),
        times(each.ttft_p50),
        times(each.ttft_p90),
        number(each.figures.get("tpot_p50_s"), 1, 1e3),
        share(each.figures.get("hit_rate")),
        share(each.figures.get("shed_rate")),
        number(each.figures.get("jain"), 3),
    ]


def compact(rows: Sequence[Standing]) -> list[dict[str, Any]]:
    """Return every figure, with its interval where it has one, for storage in a file."""
    return [
        {
            "workload": each.workload,
            "shed": each.shed,
            "load": each.load,
            "rate_rps": _short(each.rate_rps),
            "policy": each.policy,
            "seeds": each.seeds,
            **{name: _short(figure) for name, figure in each.figures.items()},
            "goodput_rps": _triple(each.goodput),
            "lead": _triple(each.lead),
            "ours_over_ttft_p50": _triple(each.ttft_p50),
            "ours_over_ttft_p90": _triple(each.ttft_p90),
        }
        for each in rows
    ]


def restored(row: Mapping[str, Any]) -> Standing:
    """Return a standing from what `compact` made of it."""
    figures = {name: float(row[name]) for name in FIGURES if name in row and name != "goodput_rps"}
    goodput_rps = _bounds(row["goodput_rps"]) or Bounds(*[float("nan")] * 3)
    return Standing(
        row["policy"],
        row["workload"],
        row["shed"],
        row["load"],
        float(row["rate_rps"]),
        row["seeds"],
        {"goodput_rps": goodput_rps.value, **figures},
        goodput_rps,
        *(_bounds(row[name]) for name in ("lead", "ours_over_ttft_p50", "ours_over_ttft_p90")),
    )


def markdown(rows: Sequence[Standing]) -> str:
    """Return the policies of one workload, load and way of shedding as a Markdown table, best goodput first."""
    lines = [
        "| policy | goodput /s | ours leads by | TTFT p50 s | ours / theirs | TTFT p90 s | ours / theirs | TPOT p50, "
        "p99 ms | hits | shed | Jain |",
        "|---|" + "---:|" * 10,
    ]
    for each in rows:
        name = f"**{each.policy}**" if each.policy == OURS else each.policy
        figures = each.figures
        lines.append(
            f"| {name} | {with_interval(each.goodput)} | {lead_text(each)} | {number(figures.get('ttft_p50_s'), 2)} | "
            f"{times(each.ttft_p50)} | {number(figures.get('ttft_p90_s'), 2)} | {times(each.ttft_p90)} | "
            f"{number(figures.get('tpot_p50_s'), 1, 1e3)}, {number(figures.get('tpot_p99_s'), 1, 1e3)} | "
            f"{share(figures.get('hit_rate'))} | {share(figures.get('shed_rate'))} | "
            f"{number(figures.get('jain'), 3)} |"
        )
    bound = max((each.figures.get("bound_rps", 0.0) for each in rows), default=0.0)
    return "\n".join([*lines, f"| *bound* | {bound:.2f} |" + " |" * 9])


def with_interval(figure: Bounds) -> str:
    """Return a figure with half of its interval."""
    return f"{figure.value:.2f}" + (f" ±{figure.half:.2f}" if figure.half == figure.half else "")


def lead_text(each: Standing) -> str:
    """Return Penstock's lead in per cent of the other's goodput with its interval; ▲ ▼ where it is beyond chance."""
    if each.policy == OURS:
        return ""
    if each.lead is None:
        return "-"
    low, high = 100.0 * each.lead.low, 100.0 * each.lead.high
    between = f" ({low:+.1f} to {high:+.1f})" if low == low else ""
    return f"{100.0 * each.lead.value:+.1f}{between} %{MARKS[each.lead.verdict()]}"


def times(figure: Bounds | None) -> str:
    """Return a ratio of latencies; ▼ where Penstock's is larger beyond chance, ▲ where it is smaller."""
    if figure is None or figure.value != figure.value:
        return ""
    mark = {"above": " ▼", "below": " ▲", "same": ""}[figure.verdict(1.0)]
    return f"{figure.value:.2f}x{mark}"


def number(value: float | None, digits: int, factor: float = 1.0) -> str:
    """Return a number with so many decimals; - where it is missing."""
    return "-" if value is None else f"{value * factor:.{digits}f}"


def share(value: float | None) -> str:
    """Return a share (0 to 1) in per cent; - where it is missing."""
    return "-" if value is None else f"{100.0 * value:.1f} %"


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _triple(figure: Bounds | None) -> list[float | None] | None:
    """Return value, low and high; None for what is not finite, which JSON does not have."""
    if figure is None:
        return None
    return [
        _short(each) if abs(each) < float("inf") else None for each in (figure.value, figure.low, figure.high)
    ]


def _bounds(triple: Sequence[float | None] | None) -> Bounds | None:
    """The inverse of `_triple`; what is not finite has become NaN."""
    if triple is None:
        return None
    return Bounds(*(float("nan") if each is None else each for each in triple))
