"""The ablation as one table: a row per mechanism, what it gains at every point and over all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.placement.studies import Study
from sim.pool.ablation import MECHANISMS
from sim.pool.blocks import Block, Bounds, goodput, ratio, ttft
from sim.pool.compare import Row
from sim.pool.knee import Knee
from sim.pool.registry import OURS

Pairs = list[tuple[Block, Block]]
EXACT = "penstock_exact"
TIE = 0.01
"""Largest gain or loss of goodput, as a share, that a mechanism that ties may have over all points."""
INTRODUCTION = f"""Written by `make bench-placement`; do not edit. Each row switches one mechanism off by a setting
(`sim/pool/ablation.py`). A figure is the goodput with the mechanism over that without it, less 1, and then the TTFT p50
and p90 with it over those without it: below 1 it makes first tokens earlier. ▲ and ▼ mark what is better or worse with
it beyond chance. *Over all* compares sums over the points, of goodput as a share of the workload's knee; every point
counts once, however many blocks its runs have. A mechanism *ties* where its interval over all points contains 0
and lies within ±{100 * TIE:g} %, or contains 0 and no single point gains beyond chance. Of those that tie it is said
where first tokens come earlier beyond chance at some points, and later at none."""


@dataclass(frozen=True, slots=True)
class AblationRow:
    """What one mechanism gains."""

    name: str
    about: str
    over_all: Bounds
    """Gain in goodput over all points, as a share."""
    points: Sequence[Pairs]
    """Blocks with the mechanism and without it, at every point; empty where it was not played."""
    verdict: str

    def gains(self) -> list[Bounds]:
        """Return the gain in goodput at every point that was played."""
        return [_gain(pairs) for pairs in self.points if pairs]


def ablation_rows(played: Sequence[tuple[Study, Knee, Sequence[Row]]]) -> list[AblationRow]:
    """Return a row for each mechanism that was switched off in some study."""
    found = []
    for policy, name, about in [
        *((f"{OURS}-{name}", name, mechanism.about) for name, mechanism in MECHANISMS.items()),
        (EXACT, "mirror", "mirrored prefixes instead of exact ones"),
    ]:
        points: list[Pairs] = []
        pooled: Pairs = []
        for study, knee, rows in played:
            for shed, load in study.points:
                pairs = _pairs(rows, policy, shed, load)
                points.append(pairs)
                pooled += [
                    (_relative(ours, knee, len(pairs)), _relative(without, knee, len(pairs)))
                    for ours, without in pairs
                ]
        if pooled:
            over_all = _gain(pooled)
            found.append(AblationRow(name, about, over_all, points, _verdict(over_all, points)))
    return found


def ablation_text(studies: Sequence[Study], rows: Sequence[AblationRow], conditions: str, figure: str) -> str:
    """Return the page: gains in goodput of having the mechanism, with intervals, and its effect on the TTFT."""
    columns = [
        f"{study.workload} at {load:g}, shed {shed}" for study in studies for shed, load in study.points
    ]
    lines = [
        f"| mechanism | over all | {' | '.join(columns)} | verdict |",
        "|---|" + "---:|" * (len(columns) + 1) + "---|",
    ]
    for row in rows:
        shown = " | ".join(_cell(pairs) for pairs in row.points)
        lines.append(f"| `{row.name}`: {row.about} | {percent(row.over_all)} | {shown} | {row.verdict} |")
    title = "# What each mechanism of the scheduler gains"
    return "\n\n".join([title, INTRODUCTION, conditions, "\n".join(lines), figure]) + "\n"


def _verdict(over_all: Bounds, points: Sequence[Pairs]) -> str:
    played = [pairs for pairs in points if pairs]
    verdict = verdict_of(over_all, [_gain(pairs) for pairs in played])
    if verdict == "ties" and earlier([each for pairs in played for each in _delays(pairs)]):
        return "ties, earlier first tokens"
    return verdict


def verdict_of(over_all: Bounds, points: Sequence[Bounds]) -> str:
    """Return what the figures say of a mechanism: it gains, costs, ties, or gains at some points only."""
    if over_all.verdict() == "above":
        return "gains"
    if over_all.verdict() == "below":
        return "costs"
    if over_all.low > -TIE and over_all.high < TIE:
        return "ties"
    return "gains somewhere" if any(point.verdict() == "above" for point in points) else "ties"


def earlier(delays: Sequence[Bounds]) -> bool:
    """Return whether first tokens come earlier beyond chance somewhere, and later nowhere; `delays` are TTFT ratios."""
    verdicts = {each.verdict(1.0) for each in delays}
    return "below" in verdicts and "above" not in verdicts


def _pairs(rows: Sequence[Row], name: str, shed: str, load: float) -> Pairs:
    """Return the blocks of ours and of the variant, for the same arrivals."""
    at = [row for row in rows if (row["shed"], row["load"]) == (shed, load)]
    ours: Mapping[int, list[Block]] = {row["seed"]: row["blocks"] for row in at if row["policy"] == OURS}
    return [
        pair
        for row in at
        if row["policy"] == name and row["seed"] in ours
        for pair in zip(ours[row["seed"]], row["blocks"], strict=True)
    ]


def _relative(block: Block, knee: Knee, blocks: int) -> Block:
    """Return the block with its goodput as a share of the knee, and with the weight of one of a point's `blocks`."""
    weight = 1.0 / blocks
    return {**block, "s": weight, "met": weight * block["met"] / max(1e-9, block["s"]) / knee.rate_rps}


def _gain(pairs: Pairs) -> Bounds:
    over = ratio(pairs, goodput)
    return Bounds(over.value - 1.0, over.low - 1.0, over.high - 1.0)


def percent(gain: Bounds) -> str:
    """Return a gain in per cent with its interval; ▲ ▼ where it is beyond chance."""
    mark = {"above": " ▲", "below": " ▼", "same": ""}[gain.verdict()]
    return f"{100 * gain.value:+.1f} ({100 * gain.low:+.1f} to {100 * gain.high:+.1f}) %{mark}"


def _cell(pairs: Pairs) -> str:
    if not pairs:
        return "-"
    marks = {"above": " ▼", "below": " ▲", "same": ""}
    shown = [f"{each.value:.2f}x{marks[each.verdict(1.0)]}" for each in _delays(pairs)]
    return f"{percent(_gain(pairs))}; {', '.join(shown)}"


def _delays(pairs: Pairs) -> list[Bounds]:
    """Return the ratios of the TTFT p50 and p90, with the mechanism over without it."""
    return [ratio(pairs, ttft(share)) for share in (0.5, 0.9)]
