"""Summarises rows: means with confidence intervals, differences to Penstock's policy, and tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sim.pool.compare import Row
from sim.pool.registry import OURS
from sim.pool.stats import Interval, interval, paired

FIGURES = (
    "goodput_rps", "slo_met", "ttft_p50_s", "ttft_p90_s", "ttft_p99_s", "tpot_p50_s", "hit_rate", "shed_rate", "jain",
    "max_service_gap", "gpu_hours", "bound_rps",
)  # fmt: skip
COLUMNS = (
    "policy", "goodput req/s", "in time", "ours leads by", "TTFT p50", "p90", "p99 s", "TPOT p50 ms", "hits", "shed",
    "Jain", "gap ktok",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Standing:
    """One policy at one load of one workload, over all seeds."""

    policy: str
    workload: str
    load: float
    rate_rps: float
    figures: Mapping[str, Interval]
    """Each figure with its interval; figures without a value for some seed are omitted."""
    lead: Interval | None
    """Penstock's goodput minus this policy's, in pairs by seed; None for Penstock's and where it did not run."""

    def mean(self, figure: str) -> float | None:
        """Return the mean of a figure; None when it is missing."""
        known = self.figures.get(figure)
        return None if known is None else known.mean


def standings(rows: Sequence[Row]) -> list[Standing]:
    """Return one standing per workload, load and policy; within a load the best goodput comes first."""
    groups: dict[tuple[str, float, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["workload"], row["load"], row["policy"]), []).append(row)
    result = [
        _standing(group, groups.get((workload, load, OURS), []))
        for (workload, load, _), group in groups.items()
    ]
    return sorted(result, key=lambda each: (each.workload, each.load, -(each.mean("goodput_rps") or 0.0)))


def _standing(rows: Sequence[Row], ours: Sequence[Row]) -> Standing:
    first = rows[0]
    figures = {
        name: interval([float(row[name]) for row in rows])
        for name in FIGURES
        if all(row[name] is not None for row in rows)
    }
    lead = None
    if ours and first["policy"] != OURS:
        by_seed = {row["seed"]: float(row["goodput_rps"]) for row in ours}
        pairs = [(by_seed[row["seed"]], float(row["goodput_rps"])) for row in rows if row["seed"] in by_seed]
        if pairs:
            lead = paired([one for one, _ in pairs], [other for _, other in pairs])
    return Standing(
        first["policy"], first["workload"], first["load"], float(first["rate_rps"]), figures, lead
    )


def cells(each: Standing) -> list[str]:
    """Return a standing as a row of COLUMNS."""
    return [
        each.policy,
        _with_interval(each.figures["goodput_rps"]),
        _share(each.mean("slo_met")),
        _lead(each),
        _number(each.mean("ttft_p50_s"), 2),
        _number(each.mean("ttft_p90_s"), 2),
        _number(each.mean("ttft_p99_s"), 2),
        _number(each.mean("tpot_p50_s"), 1, 1e3),
        _share(each.mean("hit_rate")),
        _share(each.mean("shed_rate")),
        _number(each.mean("jain"), 3),
        _number(each.mean("max_service_gap"), 1, 1e-3),
    ]


def compact(rows: Sequence[Standing]) -> list[dict[str, Any]]:
    """Return mean, half interval and n of every figure, for storage in a file."""
    return [
        {
            "workload": each.workload,
            "load": each.load,
            "rate_rps": _short(each.rate_rps),
            "policy": each.policy,
            "n": each.figures["goodput_rps"].n,
            **{
                name: [_short(figure.mean), _short(figure.half) if figure.n > 1 else None]
                for name, figure in each.figures.items()
            },
            "lead_rps": None if each.lead is None else [_short(each.lead.mean), _finite(each.lead)],
        }
        for each in rows
    ]


def markdown(rows: Sequence[Standing]) -> str:
    """Return one workload as a Markdown table: goodput at every load, and latency and hits at the knee."""
    loads = sorted({each.load for each in rows})
    knee = min(loads, key=lambda load: abs(load - 1.0))
    by_place = {(each.policy, each.load): each for each in rows}
    order = sorted(
        {each.policy for each in rows}, key=lambda name: -(_mean(by_place, name, knee, "goodput_rps") or 0.0)
    )
    lines = [
        "| policy | "
        + " | ".join(f"goodput at {load:g}" for load in loads)
        + f" | ours leads at {knee:g} | TTFT p50 / p90 s | TPOT p50 ms | hits | Jain |",
        "|---|" + "---:|" * (len(loads) + 5),
    ]
    for name in order:
        here = by_place[name, knee]
        goodputs = [_with_interval(by_place[name, load].figures["goodput_rps"]) for load in loads]
        shown = f"**{name}**" if name == OURS else name
        lines.append(
            f"| {shown} | {' | '.join(goodputs)} | {_lead(here)} | {_number(here.mean('ttft_p50_s'), 2)} / "
            f"{_number(here.mean('ttft_p90_s'), 2)} | {_number(here.mean('tpot_p50_s'), 1, 1e3)} | "
            f"{_share(here.mean('hit_rate'))} | {_number(here.mean('jain'), 3)} |"
        )
    bounds = [f"{_mean(by_place, order[0], load, 'bound_rps') or 0.0:.2f}" for load in loads]
    lines.append(f"| *bound* | {' | '.join(bounds)} | | | | | |")
    return "\n".join(lines)


def _mean(
    by_place: Mapping[tuple[str, float], Standing], policy: str, load: float, figure: str
) -> float | None:
    return by_place[policy, load].mean(figure)


def _with_interval(figure: Interval) -> str:
    return f"{figure.mean:.2f}" + (f" ±{figure.half:.2f}" if figure.n > 1 else "")


def _lead(each: Standing) -> str:
    """Return Penstock's lead in per cent of the other's goodput, with the paired interval; significant leads
    are marked.
    """
    goodput = each.mean("goodput_rps")
    if each.lead is None:
        return "" if each.policy == OURS else "-"
    if not goodput:
        return f"+{each.lead.mean:.2f}/s"
    percent = 100.0 / goodput
    mark = {"better": " ▲", "worse": " ▼", "same": ""}[each.lead.verdict] if each.lead.n > 1 else ""
    half = f" ±{each.lead.half * percent:.1f}" if each.lead.n > 1 else ""
    return f"{each.lead.mean * percent:+.1f}{half} %{mark}"


def _number(value: float | None, digits: int, factor: float = 1.0) -> str:
    return "-" if value is None else f"{value * factor:.{digits}f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100.0 * value:.1f} %"


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _finite(figure: Interval) -> float | None:
    return _short(figure.half) if figure.n > 1 else None
