"""The ablation as one table: a row per mechanism, what it gains at every point and over all."""

from collections.abc import Mapping, Sequence

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
it beyond chance. *Over all* weighs every point alike. A mechanism *ties* where its interval over all points contains 0
and lies within ±{100 * TIE:g} %, or contains 0 and no single point gains beyond chance. Of those that tie it is said
where first tokens come earlier beyond chance at some points, and later at none."""


def ablation_text(played: Sequence[tuple[Study, Knee, Sequence[Row]]], conditions: str) -> str:
    """Return the page: gains in goodput of having the mechanism, with intervals, and its effect on the TTFT."""
    points = [(study, shed, load) for study, _, _ in played for shed, load in study.points]
    columns = [f"{study.workload} at {load:g}, shed {shed}" for study, shed, load in points]
    lines = [
        f"| mechanism | over all | {' | '.join(columns)} | verdict |",
        "|---|" + "---:|" * (len(points) + 1) + "---|",
    ]
    for name, about in [
        *((f"{OURS}-{name}", f"`{name}`: {mechanism.about}") for name, mechanism in MECHANISMS.items()),
        (EXACT, "mirrored prefixes instead of exact ones"),
    ]:
        here: list[Pairs] = []
        pooled: Pairs = []
        for study, knee, rows in played:
            for shed, load in study.points:
                pairs = _pairs(rows, name, shed, load)
                here.append(pairs)
                pooled += [(_relative(ours, knee), _relative(without, knee)) for ours, without in pairs]
        if not pooled:
            continue
        over_all = _gain(pooled)
        shown = " | ".join(_cell(pairs) for pairs in here)
        points_played = [pairs for pairs in here if pairs]
        verdict = verdict_of(over_all, [_gain(pairs) for pairs in points_played])
        if verdict == "ties" and earlier([each for pairs in points_played for each in _delays(pairs)]):
            verdict = "ties, earlier first tokens"
        lines.append(f"| {about} | {_percent(over_all)} | {shown} | {verdict} |")
    return (
        "\n\n".join(
            [
                "# What each mechanism of the scheduler gains",
                INTRODUCTION,
                conditions,
                "\n".join(lines),
            ]
        )
        + "\n"
    )


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


def _relative(block: Block, knee: Knee) -> Block:
    """Return the block with its goodput as a share of the workload's knee, so that workloads weigh alike by length."""
    return {**block, "s": 1.0, "met": block["met"] / max(1e-9, block["s"]) / knee.rate_rps}


def _gain(pairs: Pairs) -> Bounds:
    over = ratio(pairs, goodput)
    return Bounds(over.value - 1.0, over.low - 1.0, over.high - 1.0)


def _percent(gain: Bounds) -> str:
    mark = {"above": " ▲", "below": " ▼", "same": ""}[gain.verdict()]
    return f"{100 * gain.value:+.1f} ({100 * gain.low:+.1f} to {100 * gain.high:+.1f}) %{mark}"


def _cell(pairs: Pairs) -> str:
    if not pairs:
        return "-"
    marks = {"above": " ▼", "below": " ▲", "same": ""}
    shown = [f"{each.value:.2f}x{marks[each.verdict(1.0)]}" for each in _delays(pairs)]
    return f"{_percent(_gain(pairs))}; {', '.join(shown)}"


def _delays(pairs: Pairs) -> list[Bounds]:
    """Return the ratios of the TTFT p50 and p90, with the mechanism over without it."""
    return [ratio(pairs, ttft(share)) for share in (0.5, 0.9)]
